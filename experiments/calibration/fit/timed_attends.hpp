#pragma once

#include "experiments/calibration/fit/cost_fit.hpp"
#include "experiments/calibration/fit/gpu_samples.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Masks of packed documents, of so many tokens, under which a backward launch goes over more rows at a time than a
/// cache holds: what is read again is fitted to them, that of more documents first.
std::vector<std::string> fitted_documents(std::int64_t tokens);

/// The attend that a sample of a kernel's call has timed; nothing where the call is of what surrounds attends.
struct SampledAttend {
    layouts::Pass pass = layouts::Pass::forward;
    TimedAttend attend;
};
std::optional<SampledAttend> sampled_attend(const GpuSample& sample, std::shared_ptr<const Plan> plan);

/// FLOP/s that power allows without end, by an attend of one rank that never rests, were they done at the clock of
/// those that do; nothing where its clock is not bounded by power. Power goes as rate x clock^2.
std::optional<double> power_flops(const TimedAttend& sustained, layouts::Pass pass, const sim::Machine& machine);

/// FLOP/s of visible pairs of an attend of one rank.
double flops_of(const TimedAttend& attend, layouts::Pass pass);

}  // namespace ringlab::experiments
