#pragma once

#include "experiments/calibration/fit/cost_fit.hpp"
#include "experiments/calibration/fit/gpu_samples.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// The attend that a sample of a kernel's call has timed. Nothing if the call timed what surrounds attends.
struct SampledAttend {
    layouts::Pass pass = layouts::Pass::forward;
    TimedAttend attend;
};
std::optional<SampledAttend> sampled_attend(const GpuSample& sample, std::shared_ptr<const Plan> plan);

/// FLOP/s of visible pairs of an attend of one rank.
double flops_of(const TimedAttend& attend, layouts::Pass pass);

}  // namespace ringlab::experiments
