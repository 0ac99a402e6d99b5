#pragma once

#include "experiments/calibration/fit/cost_fit.hpp"
#include "experiments/calibration/fit/gpu_samples.hpp"

#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A machine whose costs are fitted to samples, for one transport between its GPUs.
struct FittedMachine {
    sim::Machine machine;
    std::map<std::string, std::string> sources;  ///< of figures: see sim::machine_text
    std::vector<TimedAttend> forward, backward;  ///< that were timed, those held out too
};

/// `transport`: "copy" or "nccl"; "" where there is one GPU, whose links are then ideal. Throws Error where samples of
/// some kind are missing.
FittedMachine fit_gpu(const GpuSamples& samples, const std::string& transport);

}  // namespace ringlab::experiments
