#pragma once

#include "experiments/calibration/gpu/gpu_fit.hpp"
#include "experiments/execution/gpu_probe.hpp"

namespace ringlab::experiments {

/// Samples to be timed of the machine's other kernels, without seconds yet, in groups of one plan each. `tokens`:
/// largest number of tokens of a rank.
std::vector<std::vector<GpuSample>> wanted_of_kernels(const sim::Machine& machine, std::int64_t tokens);

/// Times one of these groups.
void time_kernel(std::vector<GpuSample> wanted, GpuProbe& probe, GpuSamples& all);

/// Fits the prices of each other kernel of which there are samples. Prices that they do not show are those of the
/// machine's own kernel.
void fit_kernels(FittedMachine& fitted, const GpuSamples& samples);

}  // namespace ringlab::experiments
