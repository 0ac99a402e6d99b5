#include "sim/cost/key_launch.hpp"

#include "sim/cost/fused_launch.hpp"

#include <algorithm>
#include <utility>

namespace ringlab::sim {

KeyLaunch::KeyLaunch(TileModel& tiles, std::span<const TileModel::FusedAttend> attends) : tiles_(&tiles), sms_(1) {
    for (const auto& attend : attends) parts_.push_back(tiles.key_tiles_of_block(attend.rows, attend.keys));
    plan_ = tiles.plan_of(parts_);
}

void KeyLaunch::begin(double seconds) { sms_ = ListScheduler(plan_.sharing.at_a_time, seconds); }

double KeyLaunch::end_of_next_attend(double block, double gradient, double slower) {
    double end = 0;
    for (const auto& [seconds, count] : tiles_->in_launch_order(*parts_[next_], plan_))
        end = std::max(end, sms_.give({slower * seconds, count}, block, gradient));
    ++next_;
    return end;
}

Picoseconds KeyLaunches::end_of_next_attend(Picoseconds ready, Picoseconds block, Picoseconds gradient, double slower) {
    if (!std::exchange(read_, true))
        for (const auto& launch : launches_of_rank(*schedule_, rank_)) launches_.emplace_back(*tiles_, launch.attends);
    auto& launch = launches_.front();
    if (!std::exchange(begun_, true)) launch.begin(layouts::to_seconds(ready) + launch_seconds_);
    const auto end = launch.end_of_next_attend(layouts::to_seconds(block), layouts::to_seconds(gradient), slower);
    expected_end_ = std::max(ready, layouts::checked_picoseconds(end));
    return expected_end_;
}

void KeyLaunches::ended(Picoseconds now) {
    auto& launch = launches_.front();
    if (!launch.is_done()) return launch.delay(layouts::to_seconds(now - expected_end_));
    launches_.pop_front();
    begun_ = false;
}

void ArrivalTracker::arrived(std::int64_t transfer, bool gradient, Picoseconds now) {
    arrivals_[transfer] = {now, gradient};
    constexpr std::size_t enough = 64;  // older arrivals delay nothing
    if (arrivals_.size() > enough) arrivals_.erase(arrivals_.begin());
}

Picoseconds ArrivalTracker::end_of_next_attend(Picoseconds ready, double slower) {
    Picoseconds block = 0, gradient = 0;
    const auto& [after, count] = attends_.front();
    for (int i = 0; i < count; ++i) {
        const auto found = arrivals_.find(after[static_cast<std::size_t>(i)]);
        if (found == arrivals_.end()) continue;
        auto& time = found->second.gradient ? gradient : block;
        time = std::max(time, found->second.time);
    }
    return launches_.end_of_next_attend(ready, block, gradient, slower);
}

void ArrivalTracker::ended(Picoseconds now) {
    attends_.pop_front();
    launches_.ended(now);
}

}  // namespace ringlab::sim
