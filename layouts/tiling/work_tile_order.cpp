#include "layouts/tiling/work_tile_order.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::layouts {

bool fall_linearly(std::span<const WorkTileReach> items) {
    if (items.empty()) return false;
    const auto length = [&](std::size_t i) { return static_cast<double>(items[i].entries); };
    const auto last = items.size() - 1;
    const double slope = last > 0 ? (length(last) - length(0)) / static_cast<double>(last) : 0;
    constexpr double near = 0.1;  // of the longest length
    for (std::size_t i = 0; i <= last; ++i)
        if (items[i].last != items[0].last ||
            std::abs(length(i) - length(0) - slope * static_cast<double>(i)) > near * length(0))
            return false;
    return true;
}

bool have_similar_lengths(std::int64_t entries, std::int64_t longest, std::int64_t items) {
    constexpr double near = 0.75;  // of the longest, on average
    return static_cast<double>(entries) > near * static_cast<double>(longest * items);
}

std::optional<WorkTileOrder> lockstep_order(std::int64_t items, std::int64_t heads, std::int64_t places, bool similar) {
    constexpr double enough = 0.9;  // of the places, and of the work tiles
    const auto nearly = [](std::int64_t part, std::int64_t all) {
        return static_cast<double>(part) >= enough * static_cast<double>(all);
    };
    for (std::int64_t heads_at_a_time = 1; heads_at_a_time <= std::min(heads, places); ++heads_at_a_time) {
        if (heads % heads_at_a_time != 0) continue;
        const auto most = places / heads_at_a_time, fewest = std::max<std::int64_t>(items / most, 1);
        for (const auto sections : {fewest, fewest + 1}) {
            const auto section_tiles = std::min(most, items / sections);
            const bool are_paired = sections * heads / heads_at_a_time % 2 == 0 || similar;
            if (are_paired && nearly(section_tiles * heads_at_a_time, places) &&
                nearly(section_tiles * sections, items))
                return WorkTileOrder{.leading_tiles = static_cast<int>(section_tiles * sections),
                                     .heads_at_a_time = static_cast<int>(heads_at_a_time),
                                     .section_tiles = static_cast<int>(section_tiles),
                                     .sections = static_cast<int>(sections),
                                     .in_lockstep = true};
        }
    }
    return std::nullopt;
}

std::optional<WorkTileOrder> fused_lockstep_order(std::span<const std::uint32_t> block_items, std::int64_t heads,
                                                  std::int64_t places) {
    if (block_items.empty()) return std::nullopt;
    const auto each = block_items.front();
    if (!std::ranges::all_of(block_items, [&](std::uint32_t items) { return items == each; })) return std::nullopt;
    const auto order = lockstep_order(each, heads, places, false);
    return order && order->leading_tiles == static_cast<std::int64_t>(each) ? order : std::nullopt;
}

}  // namespace ringlab::layouts
