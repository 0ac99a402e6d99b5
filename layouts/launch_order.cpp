#include "layouts/launch_order.hpp"

#include <algorithm>

namespace ringlab::layouts {

UnitOrder backward_order(const KeyItems& items, const LaunchPlaces& places) {
    const auto& [heads, group, processors, blocks] = places;
    const bool alike = are_alike(items.entries, items.longest, items.items);
    if (items.fall_evenly)
        if (const auto order = order_in_step(items.busy, heads, processors / blocks, alike)) return *order;
    const auto first = alike ? items.items : items.items / 2;
    constexpr double enough = 0.75;  // of the SMs: filling that many is better than taking twice the heads
    const double least = enough * static_cast<double>(processors);
    std::int64_t together = 1;
    while (together < heads && (heads % together != 0 || static_cast<double>(together * first * blocks) < least))
        ++together;
    return {.first_items = static_cast<int>(first),
            .together = static_cast<int>(together),
            .chunk = static_cast<int>(first)};
}

UnitOrder backward_order_with_turns(const KeyItems& items, const LaunchPlaces& places) {
    const auto& [heads, group, processors, blocks] = places;
    const auto chunk = std::min(processors / heads, items.busy);
    constexpr std::int64_t many = 8, tiles_apart = 2;
    if (!items.fall_evenly || blocks > 1 || group < many || chunk < 1 || chunk > tiles_apart * group) return {};
    const auto chunks = items.busy / chunk;
    return {.first_items = static_cast<int>(chunk * chunks),
            .together = static_cast<int>(heads),
            .chunk = static_cast<int>(chunk),
            .chunks = static_cast<int>(chunks),
            .in_step = true};
}

UnitOrder forward_order(std::int64_t items, std::int64_t kv_heads, std::int64_t group, std::int64_t head_bytes) {
    constexpr std::int64_t most_bytes = 10'000'000;  // a sixth of L2, which Q and O pass through as well
    auto together = kv_heads;
    while (together > 1 && (kv_heads % together != 0 || together * head_bytes > most_bytes)) --together;
    return {.first_items = static_cast<int>(items),
            .together = static_cast<int>(together * group),
            .chunk = static_cast<int>(items)};
}

void for_each_unit_run(const UnitOrder& order, std::int64_t items, std::int64_t heads,
                       const std::function<void(const UnitRun&)>& visit) {
    if (order.first_items > 0)
        for (std::int64_t head = 0; head < heads; head += order.together)
            for (std::int64_t item = 0; item < order.first_items; ++item) visit({item, head, order.together});
    for (std::int64_t item = order.first_items; item < items; ++item) visit({item, 0, heads});
}

}  // namespace ringlab::layouts
