#pragma once

#include "experiments/console/config.hpp"
#include "experiments/console/options.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// What is asked for beside results.
struct Requests {
    bool help = false, list = false, version = false;
    std::vector<std::string> config_files;
    std::string preset;
};

/// The options that the experiment understands, with what is in `config` as defaults; both targets must outlive them.
Options options_of(Config& config, Requests& requests, const Experiment& experiment);

/// Whether what an experiment times is attention as kernels have it, with nothing around.
bool times_attention_alone(const Experiment& experiment);

// Parts of it.
void add_predicting(Options& options, Config& config);
void add_threads(Options& options, Config& config);
void add_disturbing(Options& options, Config& config);

}  // namespace ringlab::experiments
