#pragma once

#include "experiments/calibration/gpu/executed_passes.hpp"
#include "experiments/calibration/gpu/gpu_fit.hpp"

namespace ringlab::experiments {

/// Host times of a pass and its operations: of short passes of ranks that take turns, over their launches and
/// transfers.
void fit_host(FittedMachine& fitted, const std::vector<ExecutedPass>& passes);

/// The host's time of a transfer over the transport, where hosts also wait for each other: that with which passes of
/// all GPUs that compute next to nothing take as long as they did. All else of the machine is fitted before.
void fit_transfer_issue(FittedMachine& fitted, const std::vector<ExecutedPass>& passes, const std::string& transport);

/// What messages cost over the transport, and attends beside them. An empty transport stands for none.
void fit_links(FittedMachine& fitted, const GpuSamples& samples, const std::vector<ExecutedPass>& passes,
               const std::string& transport);

/// The one in the middle, of an even number the second of the two.
double median_of(std::vector<double> values);

}  // namespace ringlab::experiments
