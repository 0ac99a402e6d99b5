#include "gpu/team/device_clock.hpp"

#include <algorithm>

namespace ringlab::gpu {
namespace {

using layouts::Picoseconds;

constexpr int tries = 40;

Picoseconds picoseconds(Clock::duration duration) {
    return std::chrono::duration_cast<std::chrono::duration<Picoseconds, std::pico>>(duration).count();
}

Picoseconds elapsed(cudaEvent_t from, cudaEvent_t to) { return layouts::to_picoseconds(seconds_between(from, to)); }

}  // namespace

void DeviceClock::anchor(cudaStream_t idle_stream) {
    RINGLAB_CUDA(cudaDeviceSynchronize());
    Anchor best;
    best.half_bracket = Clock::duration::max();
    for (int i = 0; i < tries; ++i) {
        Anchor anchor;
        const auto begin = Clock::now();
        anchor.event.record(idle_stream);
        while (!anchor.event.done()) {
        }
        anchor.half_bracket = (Clock::now() - begin) / 2;
        anchor.host = begin + anchor.half_bracket + team_->clock_offset();
        if (anchor.half_bracket < best.half_bracket) best = std::move(anchor);
    }
    (before_ ? after_ : before_) = std::move(best);
}

Picoseconds DeviceClock::time(cudaEvent_t event) const {
    const auto device_span = elapsed(before_->event, after_->event);
    const auto host_span = picoseconds(after_->host - before_->host);
    // Over a short span the anchors' own error would look like a rate.
    constexpr Picoseconds long_enough = 50'000'000'000;
    const double rate =
        device_span < long_enough ? 1.0 : static_cast<double>(host_span) / static_cast<double>(device_span);
    const auto since = static_cast<double>(elapsed(before_->event, event)) * rate;
    return picoseconds(before_->host.time_since_epoch()) + static_cast<Picoseconds>(since);
}

Picoseconds DeviceClock::uncertainty() const {
    return picoseconds(std::max(before_->half_bracket, after_->half_bracket) + team_->clock_uncertainty());
}

}  // namespace ringlab::gpu
