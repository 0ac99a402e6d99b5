#include "layouts/tiling/launch_order.hpp"

#include <algorithm>

namespace ringlab::layouts {

WorkTileOrder backward_order(const KeyWorkTiles& items, const LaunchShape& places) {
    const auto& [heads, group, sms, blocks] = places;
    const bool similar = have_similar_lengths(items.entries, items.longest, items.items);
    if (items.fall_linearly)
        if (const auto order = lockstep_order(items.busy, heads, sms / blocks, similar)) return *order;
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
