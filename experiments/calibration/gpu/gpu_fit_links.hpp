#pragma once

#include "experiments/calibration/gpu/executed_passes.hpp"
#include "experiments/calibration/gpu/gpu_fit.hpp"

namespace ringlab::experiments {

/// Fits the host's time of a transfer over the transport, where hosts also wait for each other: the value with which
/// nearly empty passes of all GPUs are predicted as long as they took. All other numbers of the machine must be fitted
/// before.
void fit_transfer_issue(FittedMachine& fitted, const std::vector<ExecutedPass>& passes, const std::string& transport);

/// Fits what messages cost over the transport, and attends beside them. An empty transport stands for none.
void fit_links(FittedMachine& fitted, const GpuSamples& samples, const std::vector<ExecutedPass>& passes,
               const std::string& transport);

}  // namespace ringlab::experiments
