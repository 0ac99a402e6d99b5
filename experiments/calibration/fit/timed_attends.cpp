#include "experiments/calibration/fit/timed_attends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ringlab::experiments {
namespace {

using AttendPosition = sim::TileModel::AttendPosition;

const std::map<std::string, AttendPosition> forward_calls{{"forward_kept", {true, true}},
                                                          {"forward_first", {true, false}},
                                                          {"forward_carried", {false, false}},
                                                          {"forward_last_kept", {false, true}}};

/// Whether an attend under a window is used for the fit: with windows of half and of an eighth of the tokens. Of all
/// timed attends, only these have idle work tiles whose time is not hidden by longer ones.
bool is_held_out(const GpuSample& sample) {
    return sample.ranks == 4 || sample.mask == fmt::format("window:{},0", sample.tokens_per_rank / 4) ||
           sample.mask.find("documents") != std::string::npos;
}

}  // namespace

std::optional<SampledAttend> sampled_attend(const GpuSample& sample, std::shared_ptr<const Plan> plan) {
    const auto forward = forward_calls.find(sample.call);
    const bool is_backward = sample.call == "backward_block";
    if (forward == forward_calls.end() && !is_backward) return std::nullopt;
    return SampledAttend{is_backward ? layouts::Pass::backward : layouts::Pass::forward,
                         {std::move(plan), sample.rank, sample.block, is_backward ? AttendPosition{} : forward->second,
                          sample.seconds, is_held_out(sample), sample.call}};
}

double flops_of(const TimedAttend& attend, layouts::Pass pass) {
    const auto& schedule = *attend.plan->schedule(pass);
    auto ops = schedule.ops(0);
    return schedule.flop(*ops.next()) / attend.seconds;
}

}  // namespace ringlab::experiments
