#include "layouts/tiling/work_tile_order.hpp"

#include <algorithm>
#include <cmath>

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

}  // namespace ringlab::layouts
