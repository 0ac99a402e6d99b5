#pragma once

#include "experiments/calibration/gpu/gpu_fit.hpp"
#include "experiments/execution/gpu_probe.hpp"

namespace ringlab::experiments {

/// What is to be timed of the other kernels that a machine has, in groups of one plan each: no seconds yet.
/// `tokens`: the most of a rank.
std::vector<std::vector<GpuSample>> wanted_of_kernels(const sim::Machine& machine, std::int64_t tokens);

/// Times one of these groups.
void time_kernel(std::vector<GpuSample> wanted, GpuProbe& probe, GpuSamples& all);

/// Prices of each other kernel of which there are samples; all that they do not show is as for the machine's own.
/// `launches`: seconds that launches take longer in passes than alone, forward and backward.
void fit_kernels(FittedMachine& fitted, const GpuSamples& samples, const std::map<layouts::Pass, double>& launches);

}  // namespace ringlab::experiments
