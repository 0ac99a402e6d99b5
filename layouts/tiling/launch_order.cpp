#include "layouts/tiling/launch_order.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ringlab::layouts {

/// If the longest work tile takes more than half of an SM's mean share of the work, the launch may have to wait for it.
/// Then the choice is the one with the shortest estimated time: work tiles, longest first, each go to the group that is
/// free first. Their lengths are taken to fall from the longest, by the power of the rank that gives their mean: all
/// are equal under a full mask, and they fall linearly under a causal one.
SmGroup fastest_sm_group(const BackwardLoad& load, std::int64_t sms, std::span<const SmGroup> groups) {
    SmGroup best{1, sms};
    if (2 * load.longest * sms <= load.entries || load.items == 0) return best;
    constexpr double item = 7;  // fixed cost of a work tile in steps: 13 us, at 2 us a step, measured at head dim 128
    const auto items = static_cast<double>(load.items), longest = static_cast<double>(load.longest);
    const double power = std::max(0.0, longest * items / static_cast<double>(load.entries) - 1);
    std::vector<double> steps;  // of each work tile
    for (std::int64_t i = 0; i < load.items; ++i)
        steps.push_back(longest * std::pow(1 - (static_cast<double>(i) + 0.5) / items, power) *
                        static_cast<double>(load.steps_per_row_tile));
    const auto time_with = [&](const SmGroup& sharing) {
        const auto places = static_cast<std::size_t>(std::min(sharing.at_a_time, load.items));
        std::vector<double> busy_until(places);  // a heap, the first to be free on top
        double end = 0;
        for (const double of_item : steps) {
            std::ranges::pop_heap(busy_until, std::greater());
            busy_until.back() += item + of_item / static_cast<double>(sharing.sms);
            end = std::max(end, busy_until.back());
            std::ranges::push_heap(busy_until, std::greater());
        }
        return end;
    };
    double least = time_with(best);
    for (const auto& group : groups)
        if (const auto time = time_with(group); time < least) {
            least = time;
            best = group;
        }
    return best;
}

WorkTileOrder backward_order(const KeyWorkTiles& items, const LaunchShape& places) {
    const auto& [heads, group, sms, blocks] = places;
    const bool similar = have_similar_lengths(items.entries, items.longest, items.items);
    if (items.fall_linearly)
        if (const auto order = lockstep_order(items.busy, heads, sms / blocks, similar)) return *order;
    if (items.row_groups > 1) {
        const auto of_group = (items.busy + items.row_groups - 1) / items.row_groups;
        auto heads_at_a_time = heads;
        while (heads_at_a_time > 1 && (heads % heads_at_a_time != 0 || heads_at_a_time * of_group * blocks > sms))
            --heads_at_a_time;
        return {.leading_tiles = static_cast<int>(items.busy),
                .heads_at_a_time = static_cast<int>(heads_at_a_time),
                .section_tiles = static_cast<int>(items.busy)};
    }
    const auto first = similar ? items.items : items.items / 2;
    constexpr double enough = 0.75;  // of the SMs: filling that many is better than taking twice the heads
    const double least = enough * static_cast<double>(sms);
    std::int64_t heads_at_a_time = 1;
    while (heads_at_a_time < heads &&
           (heads % heads_at_a_time != 0 || static_cast<double>(heads_at_a_time * first * blocks) < least))
        ++heads_at_a_time;
    return {.leading_tiles = static_cast<int>(first),
            .heads_at_a_time = static_cast<int>(heads_at_a_time),
            .section_tiles = static_cast<int>(first)};
}

WorkTileOrder deterministic_backward_order(const KeyWorkTiles& items, const LaunchShape& places) {
    const auto& [heads, group, sms, blocks] = places;
    const auto section_tiles = std::min(sms / heads, items.busy);
    constexpr std::int64_t many = 8, tiles_apart = 2;
    if (!items.fall_linearly || blocks > 1 || group < many || section_tiles < 1 || section_tiles > tiles_apart * group)
        return {};
    const auto sections = items.busy / section_tiles;
    return {.leading_tiles = static_cast<int>(section_tiles * sections),
            .heads_at_a_time = static_cast<int>(heads),
            .section_tiles = static_cast<int>(section_tiles),
            .sections = static_cast<int>(sections),
            .in_lockstep = true};
}

WorkTileOrder forward_order(std::int64_t items, std::int64_t kv_heads, std::int64_t group, std::int64_t head_bytes) {
    constexpr std::int64_t most_bytes = 10'000'000;  // a sixth of L2, which Q and O pass through as well
    auto heads_at_a_time = kv_heads;
    while (heads_at_a_time > 1 && (kv_heads % heads_at_a_time != 0 || heads_at_a_time * head_bytes > most_bytes))
        --heads_at_a_time;
    return {.leading_tiles = static_cast<int>(items),
            .heads_at_a_time = static_cast<int>(heads_at_a_time * group),
            .section_tiles = static_cast<int>(items)};
}

void for_each_work_tile_run(const WorkTileOrder& order, std::int64_t items, std::int64_t heads,
                            const std::function<void(const WorkTileRun&)>& visit) {
    if (order.leading_tiles > 0)
        for (std::int64_t head = 0; head < heads; head += order.heads_at_a_time)
            for (std::int64_t item = 0; item < order.leading_tiles; ++item) visit({item, head, order.heads_at_a_time});
    for (std::int64_t item = order.leading_tiles; item < items; ++item) visit({item, 0, heads});
}

}  // namespace ringlab::layouts
