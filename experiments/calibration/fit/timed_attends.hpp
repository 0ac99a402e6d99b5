#pragma once

#include "experiments/calibration/fit/cost_fit.hpp"
#include "experiments/calibration/fit/gpu_samples.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Masks of packed documents, for so many tokens, under which a backward launch touches more rows at a time than L2
/// holds. The price of L2 misses is fitted to them; the mask with more documents comes first.
std::vector<std::string> fitted_documents(std::int64_t tokens);

/// The attend that a sample of a kernel's call has timed. Nothing if the call timed what surrounds attends.
struct SampledAttend {
    layouts::Pass pass = layouts::Pass::forward;
    TimedAttend attend;
};
std::optional<SampledAttend> sampled_attend(const GpuSample& sample, std::shared_ptr<const Plan> plan);

/// FLOP/s of visible pairs of an attend of one rank.
double flops_of(const TimedAttend& attend, layouts::Pass pass);

}  // namespace ringlab::experiments
