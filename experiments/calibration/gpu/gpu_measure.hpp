#pragma once

#include "experiments/calibration/fit/gpu_samples.hpp"
#include "experiments/execution/gpu_probe.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"

#include <functional>

namespace ringlab::experiments {

/// Times parts of passes on GPUs: single attends and what surrounds them, whole passes of one rank and of ranks that
/// take turns on one GPU, attends that never rest, messages between GPUs that compute next to nothing, and messages
/// beside attends. `keep` is called whenever there is more, so that little is lost if it ends early.
GpuSamples measure_gpus(const ProblemConfig& problem, const SweepConfig& sweep, GpuProbe& probe,
                        const std::function<void(const GpuSamples&)>& keep);

/// The plan from which a sample is taken.
std::shared_ptr<const Plan> plan_of(const GpuSample& sample, const GpuSamples& all);

}  // namespace ringlab::experiments
