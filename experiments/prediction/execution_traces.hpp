#pragma once

#include "experiments/prediction/predictor.hpp"

#include <cstddef>
#include <filesystem>
#include <string>

namespace ringlab::experiments {

/// The Chakra execution traces that --chakra asks for: of every case, machine and pass, one file for each GPU. All
/// functions do nothing if it does not.
class ExecutionTraces {
public:
    /// Both must outlive the object; `config.output.files` is told what will be written.
    ExecutionTraces(Config& config, const Predictor& predictor) : config_(config), predictor_(predictor) {}

    /// Asks for all files of a case, before anything is written. Throws Error, one line, if one must not be written.
    void announce(const Case& setup, const Plan& plan);

    /// Simulates the case once more, with free links, and writes its files.
    void write(const Case& setup);

    /// Tells what was written.
    void say() const;

private:
    bool wanted() const { return !config_.trace.chakra.empty(); }

    /// The file of a GPU: DIR/NAME.GPU.et.
    std::filesystem::path path(const Case& setup, const layouts::Schedule& schedule, std::size_t machine,
                               int gpu) const;

    Config& config_;
    const Predictor& predictor_;
    std::size_t files_ = 0;
    std::filesystem::path first_;
};

}  // namespace ringlab::experiments
