#pragma once

#include "experiments/calibration/cost_fit.hpp"
#include "experiments/calibration/samples.hpp"

#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A machine whose costs are fitted to what was timed on it.
struct FittedMachine {
    sim::Machine machine;
    std::map<std::string, std::string> sources = {};       ///< of figures: see sim::machine_text
    std::vector<TimedAttend> forward = {}, backward = {};  ///< that were timed, those held out too

    std::vector<TimedAttend>& attends(layouts::Pass pass) {
        return pass == layouts::Pass::forward ? forward : backward;
    }
    const std::vector<TimedAttend>& attends(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward : backward;
    }
};

/// Fits a machine to samples, for one transport between its GPUs: "copy" or "nccl"; "" where there is one GPU, whose
/// links are then ideal. Throws Error where samples of some kind are missing.
FittedMachine fit_gpu(const GpuSamples& samples, const std::string& transport);

/// Such a fit while it goes on.
struct GpuFit : FittedMachine {
    const GpuSamples& samples;
    std::string transport;
    std::vector<ExecutedPass> passes;
};

/// Fits what messages cost over the transport, and attends beside them.
void fit_links(GpuFit& fit);

/// Fits the host's time of a transfer over the transport, where hosts also wait for each other: the value with which
/// nearly empty passes of all GPUs are predicted as long as they took. All other numbers of the machine must be fitted
/// before.
void fit_transfer_issue(GpuFit& fit);

}  // namespace ringlab::experiments
