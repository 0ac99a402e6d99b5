#pragma once

#include "experiments/config/config.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// A fault of the machine in a run of `gradient_equivalence` under a launcher.
struct MachineTrial {
    std::string name, fault;         ///< "stopped rank", "stop:1"
    std::vector<std::string> words;  ///< arguments of this run, beside those of all runs
    std::string gate;                ///< the check that has to see it; empty: no check can, and the trial shows this
};

/// The faults of the machine that the backend can make.
std::vector<MachineTrial> machine_trials(const std::string& backend);

/// What came of it.
struct MachineOutcome {
    bool named = false;  ///< a line of the run names the rank, and it ended as it should
    double seconds = 0;  ///< from the fault to the run's end; where the run does not say when that was, of the run
    double limit = 0;    ///< the largest `seconds` that passes
    std::string said;
};

/// `fault` is empty for a run that nothing disturbs. Throws Error if the launcher does not even bring up that one.
MachineOutcome run_machine_trial(const Config& config, int ranks, const MachineTrial& trial);

}  // namespace ringlab::experiments
