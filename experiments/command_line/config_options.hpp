#pragma once

#include "experiments/config/config.hpp"
#include "experiments/options/options.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// What is asked for beside results.
struct Requests {
    bool help = false, list = false, list_machine_keys = false, version = false;
    std::vector<std::string> config_files;
    std::string preset;
};

/// The options that the experiment understands, with what is in `config` as defaults; both targets must outlive them.
Options options_of(Config& config, Requests& requests, const Experiment& experiment);

// What it is made of, in the order of --help.
void add_problem(Options& options, Config& config, Requests& requests, const Experiment& experiment);
void add_sinks(Options& options, Config& config);
void add_dropout(Options& options, Config& config);
void add_rotary(Options& options, Config& config, const Experiment& experiment);
void add_measuring(Options& options, Config& config, const Experiment& experiment);
/// `rings_alone`: nothing is timed but rings, which other backends than cuda have too.
void add_timing(Options& options, Config& config, bool rings_alone);
void add_predicting(Options& options, Config& config, const Experiment& experiment);
void add_disturbing(Options& options, Config& config);
void add_planning(Options& options, Config& config, const Experiment& experiment);

// Options that several of these groups have.
void add_clock(Options& options, Config& config);
void add_threads(Options& options, Config& config);
void add_mpi(Options& options, Config& config);
void add_timeout(Options& options, Config& config);

/// Whether the experiment makes a machine file.
bool calibrates(const Experiment& experiment);

/// Whether each run of a sweep is executed, judged and recorded by itself (study/study.hpp).
bool studies(const Experiment& experiment);

/// Whether what an experiment times is attention as kernels have it, with nothing around.
bool times_attention_alone(const Experiment& experiment);

}  // namespace ringlab::experiments
