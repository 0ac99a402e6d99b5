#include "layouts/layouts/launch_order.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace ringlab::layouts {

bool fall_linearly(std::span<const WorkTileReach> work_tiles) {
    if (work_tiles.empty()) return false;
    const auto length = [&](std::size_t i) { return static_cast<double>(work_tiles[i].entries); };
    const auto last = work_tiles.size() - 1;
    const double slope = last > 0 ? (length(last) - length(0)) / static_cast<double>(last) : 0;
    constexpr double near = 0.1;  // of the longest length
    for (std::size_t i = 0; i <= last; ++i)
        if (work_tiles[i].last != work_tiles[0].last ||
            std::abs(length(i) - length(0) - slope * static_cast<double>(i)) > near * length(0))
            return false;
    return true;
}

bool have_similar_lengths(std::int64_t entries, std::int64_t longest, std::int64_t work_tiles) {
    constexpr double near = 0.75;  // of the longest, on average
    return static_cast<double>(entries) > near * static_cast<double>(longest * work_tiles);
}

std::optional<WorkTileOrder> lockstep_order(std::int64_t work_tiles, std::int64_t heads, std::int64_t places,
                                            bool similar) {
    constexpr double enough = 0.9;  // of the places, and of the work tiles
    const auto nearly = [](std::int64_t part, std::int64_t all) {
        return static_cast<double>(part) >= enough * static_cast<double>(all);
    };
    for (std::int64_t heads_at_a_time = 1; heads_at_a_time <= std::min(heads, places); ++heads_at_a_time) {
        if (heads % heads_at_a_time != 0) continue;
        const auto most = places / heads_at_a_time, fewest = std::max<std::int64_t>(work_tiles / most, 1);
        for (const auto sections : {fewest, fewest + 1}) {
            const auto section_tiles = std::min(most, work_tiles / sections);
            const bool are_paired = sections * heads / heads_at_a_time % 2 == 0 || similar;
            if (are_paired && nearly(section_tiles * heads_at_a_time, places) &&
                nearly(section_tiles * sections, work_tiles))
                return WorkTileOrder{.leading_tiles = static_cast<int>(section_tiles * sections),
                                     .heads_at_a_time = static_cast<int>(heads_at_a_time),
                                     .section_tiles = static_cast<int>(section_tiles),
                                     .sections = static_cast<int>(sections),
                                     .in_lockstep = true};
        }
    }
    return std::nullopt;
}

std::optional<WorkTileOrder> fused_lockstep_order(std::span<const std::uint32_t> block_tiles, std::int64_t heads,
                                                  std::int64_t places) {
    if (block_tiles.empty()) return std::nullopt;
    const auto each = block_tiles.front();
    if (!std::ranges::all_of(block_tiles, [&](std::uint32_t work_tiles) { return work_tiles == each; }))
        return std::nullopt;
    const auto order = lockstep_order(each, heads, places, false);
    return order && order->leading_tiles == static_cast<std::int64_t>(each) ? order : std::nullopt;
}

namespace {

/// Fixed cost of a work tile in steps: 13 us, at 2 us a step, measured at head dim 128.
constexpr double overhead_steps = 7;

/// If the longest work tile takes more than half of an SM's mean share of the work, the launch may have to wait for it.
/// Then the choice is the one with the shortest estimated time.
template <class TimeWith>
SmGroup fastest_group(const BackwardLoad& load, std::int64_t sms, std::span<const SmGroup> groups, TimeWith time_with) {
    SmGroup best{1, sms};
    if (2 * load.longest * sms <= load.entries || load.work_tiles == 0) return best;
    double least = time_with(best);
    for (const auto& group : groups)
        if (const auto time = time_with(group); time < least) {
            least = time;
            best = group;
        }
    return best;
}

/// The `first` work tiles for as few kv heads at a time as fill the SMs.
WorkTileOrder few_heads_at_a_time(std::int64_t first, const LaunchShape& places) {
    constexpr double enough = 0.75;  // of the SMs: filling that many is better than taking twice the heads
    const double least = enough * static_cast<double>(places.sms);
    std::int64_t at_a_time = 1;
    while (at_a_time < places.heads &&
           (places.heads % at_a_time != 0 || static_cast<double>(at_a_time * first * places.blocks) < least))
        ++at_a_time;
    return {.leading_tiles = static_cast<int>(first),
            .heads_at_a_time = static_cast<int>(at_a_time),
            .section_tiles = static_cast<int>(first)};
}

}  // namespace

/// Work tiles, longest first, each go to the group that is free first. Their lengths are taken to fall from the
/// longest, by the power of the rank that gives their mean: all are equal under a full mask, and they fall linearly
/// under a causal one.
SmGroup sm_group_by_list_schedule(const BackwardLoad& load, std::int64_t sms, std::span<const SmGroup> groups) {
    const auto work_tiles = static_cast<double>(load.work_tiles), longest = static_cast<double>(load.longest);
    const double power = std::max(0.0, longest * work_tiles / static_cast<double>(load.entries) - 1);
    std::vector<double> steps;  // of each work tile
    const auto time_with = [&](const SmGroup& sharing) {
        if (steps.empty())
            for (std::int64_t i = 0; i < load.work_tiles; ++i)
                steps.push_back(longest * std::pow(1 - (static_cast<double>(i) + 0.5) / work_tiles, power) *
                                static_cast<double>(load.steps_per_row_tile));
        const auto places = static_cast<std::size_t>(std::min(sharing.at_a_time, load.work_tiles));
        std::vector<double> busy_until(places);  // a heap, the first to be free on top
        double end = 0;
        for (const double of_work_tile : steps) {
            std::ranges::pop_heap(busy_until, std::greater());
            busy_until.back() += overhead_steps + of_work_tile / static_cast<double>(sharing.sms);
            end = std::max(end, busy_until.back());
            std::ranges::push_heap(busy_until, std::greater());
        }
        return end;
    };
    return fastest_group(load, sms, groups, time_with);
}

SmGroup sm_group_by_waves(const BackwardLoad& load, std::int64_t sms, std::span<const SmGroup> groups) {
    const auto steps = [&](std::int64_t entries) { return static_cast<double>(entries * load.steps_per_row_tile); };
    return fastest_group(load, sms, groups, [&](const SmGroup& sharing) {
        const auto waves = static_cast<double>((load.work_tiles + sharing.at_a_time - 1) / sharing.at_a_time);
        const auto mean = steps(load.entries) / static_cast<double>(load.work_tiles);
        const auto blocks = static_cast<double>(sharing.sms);
        return std::max(waves * (overhead_steps + mean / blocks), overhead_steps + steps(load.longest) / blocks);
    });
}

RowGroups row_groups_of(std::span<const WorkTileReach> work_tiles) {
    constexpr std::size_t fewest_of_group = 2;  // on average
    RowGroups groups{1, std::vector<std::size_t>(work_tiles.size())};
    std::iota(groups.order.begin(), groups.order.end(), 0u);
    std::map<std::int64_t, std::size_t> by_last;  // in the order of their longest work tiles
    for (const auto& one : work_tiles) by_last.try_emplace(one.last, by_last.size());
    if (work_tiles.empty() || by_last.size() * fewest_of_group > work_tiles.size()) return groups;
    std::ranges::stable_sort(groups.order, {}, [&](std::size_t i) { return by_last.at(work_tiles[i].last); });
    groups.count = static_cast<std::int64_t>(by_last.size());
    return groups;
}

WorkTileOrder backward_order(const KeyWorkTiles& work_tiles, const LaunchShape& places) {
    const auto& [heads, group, sms, blocks] = places;
    const bool similar = have_similar_lengths(work_tiles.entries, work_tiles.longest, work_tiles.work_tiles);
    if (work_tiles.fall_linearly)
        if (const auto order = lockstep_order(work_tiles.busy, heads, sms / blocks, similar)) return *order;
    if (work_tiles.row_groups > 1) {
        const auto of_group = (work_tiles.busy + work_tiles.row_groups - 1) / work_tiles.row_groups;
        auto heads_at_a_time = heads;
        while (heads_at_a_time > 1 && (heads % heads_at_a_time != 0 || heads_at_a_time * of_group * blocks > sms))
            --heads_at_a_time;
        return {.leading_tiles = static_cast<int>(work_tiles.busy),
                .heads_at_a_time = static_cast<int>(heads_at_a_time),
                .section_tiles = static_cast<int>(work_tiles.busy)};
    }
    return few_heads_at_a_time(similar ? work_tiles.work_tiles : work_tiles.work_tiles / 2, places);
}

WorkTileOrder deterministic_backward_order(const KeyWorkTiles& work_tiles, const LaunchShape& places) {
    const auto& [heads, group, sms, blocks] = places;
    if (!work_tiles.fall_linearly) return {.by_head = work_tiles.row_groups == 1};
    const auto section_tiles = std::min(sms / heads, work_tiles.busy);
    constexpr std::int64_t many = 8, tiles_apart = 2;
    if (blocks > 1 || group < many || section_tiles < 1 || section_tiles > tiles_apart * group) {
        const bool all_equal = work_tiles.entries == work_tiles.longest * work_tiles.busy;
        return all_equal ? few_heads_at_a_time(work_tiles.busy, places) : WorkTileOrder{};
    }
    const auto sections = work_tiles.busy / section_tiles;
    return {.leading_tiles = static_cast<int>(section_tiles * sections),
            .heads_at_a_time = static_cast<int>(heads),
            .section_tiles = static_cast<int>(section_tiles),
            .sections = static_cast<int>(sections),
            .in_lockstep = true};
}

WorkTileOrder forward_order(std::int64_t work_tiles, std::int64_t kv_heads, std::int64_t group,
                            std::int64_t head_bytes) {
    constexpr std::int64_t most_bytes = 10'000'000;  // a sixth of L2, which Q and O pass through as well
    auto heads_at_a_time = kv_heads;
    while (heads_at_a_time > 1 && (kv_heads % heads_at_a_time != 0 || heads_at_a_time * head_bytes > most_bytes))
        --heads_at_a_time;
    return {.leading_tiles = static_cast<int>(work_tiles),
            .heads_at_a_time = static_cast<int>(heads_at_a_time * group),
            .section_tiles = static_cast<int>(work_tiles)};
}

void for_each_work_tile_run(const WorkTileOrder& order, std::int64_t work_tiles, std::int64_t heads,
                            const std::function<void(const WorkTileRun&)>& visit) {
    if (order.leading_tiles > 0)
        for (std::int64_t head = 0; head < heads; head += order.heads_at_a_time)
            for (std::int64_t work_tile = 0; work_tile < order.leading_tiles; ++work_tile)
                visit({work_tile, head, order.heads_at_a_time});
    for (std::int64_t work_tile = order.leading_tiles; work_tile < work_tiles; ++work_tile)
        visit({work_tile, 0, heads});
}

}  // namespace ringlab::layouts
