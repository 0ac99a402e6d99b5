#pragma once

#include "experiments/config/config.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// A fault of the machine in a run of `gradient_equivalence` under a launcher.
struct MachineTrial {
    std::string name, fault;         ///< "stopped rank", "stop:1"
    std::vector<std::string> words;  ///< arguments of this run, beside those of all runs
    std::string gate;                ///< the check that must notice it; empty: the trial shows that no check can
};

/// The faults of the machine that the backend can make.
std::vector<MachineTrial> machine_trials(const std::string& backend);

/// The outcome of a trial.
struct MachineOutcome {
    bool named = false;  ///< a line of the run names the rank, and it ended as it should
    /// From the fault to the end of the run; of the whole run, if it does not say when the fault was.
    double seconds = 0;
    double limit = 0;  ///< the largest `seconds` that passes
    std::string said;
};

/// Runs a trial. An empty `fault` is a run without a fault; if the launcher cannot start even that, it throws Error.
MachineOutcome run_machine_trial(const Config& config, int ranks, const MachineTrial& trial);

}  // namespace ringlab::experiments
