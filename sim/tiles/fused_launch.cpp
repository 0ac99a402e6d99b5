#include "sim/tiles/fused_launch.hpp"

#include "layouts/program/rank_checks.hpp"
#include "sim/machine/terms.hpp"

#include <algorithm>
#include <utility>

namespace ringlab::sim {
namespace {

using layouts::OpKind;
using FusedAttend = TileModel::FusedAttend;

/// Prices a fused launch as two launches: one of the attends that wait for nothing, and one of the rest. Each launch's
/// time is assigned to a single attend: that of the first launch to its first attend, and that of the second to its
/// last attend, because this one has waited for everything that its launch waits for.
void price_split_launch(std::span<const FusedAttend> attends, TileModel& tiles, double launch_seconds,
                        std::span<double> times) {
    for (const bool waits : {false, true}) {
        std::vector<FusedAttend> part;
        std::vector<std::size_t> places;
        for (std::size_t i = 0; i < attends.size(); ++i)
            if (attends[i].waits == waits) {
                part.push_back(attends[i]);
                places.push_back(i);
            }
        if (part.empty()) continue;
        auto& seconds = times[waits ? places.back() : places.front()];
        seconds += launch_seconds;
        for (const auto each : tiles.fused_times(part)) seconds += each;
    }
}

}  // namespace

std::vector<AttendLaunch> launches_of_rank(const Schedule& schedule, int rank) {
    std::vector<AttendLaunch> launches;
    layouts::FusedLaunchFinder finder(schedule.options().pass, schedule.lanes());
    std::vector<std::size_t> first;  // by launch: the operation that is its first attend
    auto ops = schedule.ops(rank);
    for (std::size_t i = 0; const auto* op = ops.next(); ++i) {
        finder.add(*op);
        if (op->kind != OpKind::attend) continue;
        if (!op->fused || launches.empty()) {
            launches.emplace_back();
            first.push_back(i);
        }
        launches.back().attends.push_back({op->rows(), op->part, op->begins, op->ends, !op->after().empty()});
    }
    for (auto& join : std::move(finder).found()) {
        const auto launch = std::ranges::lower_bound(first, join.attends.front());
        if (launch != first.end() && *launch == join.attends.front())
            launches[static_cast<std::size_t>(launch - first.begin())].section_begins = std::move(join.section_begins);
    }
    return launches;
}

bool has_fused_launches(const Schedule& schedule) {
    int looked_at = 0;
    auto ops = schedule.ops(0);
    while (const auto* op = ops.next()) {
        if (op->kind != OpKind::attend) continue;
        if (op->fused) return true;
        if (++looked_at == 2) return false;
    }
    return false;
}

std::vector<double> attend_seconds_of_rank(const Schedule& schedule, int rank, bool apart, TileModel& tiles,
                                           const AttentionCost& cost) {
    std::vector<double> times;
    for (const auto& [attends, section_begins] : launches_of_rank(schedule, rank)) {
        const auto first = times.size();
        times.resize(first + attends.size());
        const auto places = std::span(times).subspan(first);
        if (apart && attends.size() > 1) {
            for (std::size_t stretch = 0, begin = 0; stretch <= section_begins.size(); ++stretch) {
                const auto end = stretch < section_begins.size() ? section_begins[stretch] : attends.size();
                price_split_launch(std::span(attends).subspan(begin, end - begin), tiles, cost.launch_seconds,
                                   places.subspan(begin, end - begin));
                begin = end;
            }
            continue;
        }
        const auto each = tiles.fused_times(attends);
        std::copy(each.begin(), each.end(), places.begin());
        places.front() += cost.launch_seconds;
    }
    return times;
}

std::vector<double> TileModel::fused_times_of_key_tiles(std::span<const FusedAttend> attends) {
    KeyLaunch launch(*this, attends);
    launch.begin(0);
    std::vector<double> times;
    for (double done = 0; !launch.is_done();) {
        const auto now = std::max(done, launch.end_of_next_attend(0, 0, 1));
        times.push_back(now - done);
        done = now;
    }
    return times;
}

std::vector<double> TileModel::fused_times(std::span<const FusedAttend> attends) {
    if (cost_.work_tile == WorkTile::key_tile) return fused_times_of_key_tiles(attends);
    struct FirstWorkTile {
        double longest;
        std::size_t group;
    };
    std::vector<FirstWorkTile> known;  // by attend
    std::vector<Launch> up_to;         // by group of heads: time of the launch up to the group's end
    std::vector<WorkTiles> parts;      // by group of heads: work tiles through all blocks
    // If the first attend waits, the launch comes after everything that it needs.
    const bool waits = !attends.front().waits &&
                       std::any_of(attends.begin(), attends.end(), [](const FusedAttend& one) { return one.waits; });
    const AttendPosition position{
        std::any_of(attends.begin(), attends.end(), [](const FusedAttend& one) { return one.begins; }),
        std::any_of(attends.begin(), attends.end(), [](const FusedAttend& one) { return one.ends; })};
    int heads = -1;  // first head of the current group
    for (const auto& attend : attends) {
        auto work_tiles = work_tiles_of(block_of(attend.rows, attend.keys));
        double longest = 0;
        for (const auto& tiles : work_tiles.tiles)
            longest = std::max(
                longest, work_tile_seconds(cost_, {.tiles = tiles, .heads_in_turn = work_tiles.query_heads_in_turn}));
        if (heads != attend.rows.heads.begin) {
            if (!parts.empty()) up_to.push_back(launch(parts, position, nullptr, 0));
            parts.push_back(std::move(work_tiles));
        } else {
            auto& all = parts.back();
            all.sizes.keys += work_tiles.sizes.keys;
            const auto meets = [](const layouts::TileCounts& some) { return some.full + some.partial > 0; };
            if (waits && all.visits.empty())
                for (const auto& some : all.tiles) all.visits.push_back(meets(some));
            for (std::size_t i = 0; i < all.tiles.size(); ++i) {
                if (waits) all.visits[i] += meets(work_tiles.tiles[i]);
                all.tiles[i].full += work_tiles.tiles[i].full;
                all.tiles[i].partial += work_tiles.tiles[i].partial;
            }
        }
        heads = attend.rows.heads.begin;
        known.push_back({longest, parts.size() - 1});
    }
    up_to.push_back(launch(parts, position, nullptr, 0));

    std::vector<double> times;
    double done = 0;  // seconds of the launch so far
    for (std::size_t i = 0; i < known.size(); ++i) {
        const auto [longest, group] = known[i];
        const bool begins = i == 0 || known[i - 1].group != group;
        const bool ends = i + 1 == known.size() || known[i + 1].group != group;
        // Limited to the time of the group, because work tiles of later groups may run beside these.
        const auto first_work_tiles = done + longest - (begins ? 0 : cost_.work_tile_seconds);
        const auto now = std::max(done, ends ? up_to[group].seconds : std::min(first_work_tiles, up_to[group].seconds));
        times.push_back(now - done);
        done = now;
    }
    return times;
}

KeyLaunch::KeyLaunch(TileModel& tiles, std::span<const TileModel::FusedAttend> attends) : tiles_(&tiles), sms_(1) {
    for (const auto& attend : attends) parts_.push_back(tiles.key_tiles_of_block(attend.rows, attend.keys));
    launch_order_ = tiles.launch_order_of(parts_);
}

void KeyLaunch::begin(double seconds) { sms_ = ListScheduler(launch_order_.sharing.at_a_time, seconds); }

double KeyLaunch::end_of_next_attend(double block, double gradient, double slower) {
    double end = 0;
    for (const auto& [seconds, count] : tiles_->in_launch_order(*parts_[next_], launch_order_))
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
