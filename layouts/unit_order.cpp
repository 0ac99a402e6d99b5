#include "layouts/unit_order.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::layouts {

bool fall_evenly(std::span<const ItemReach> items) {
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

bool are_alike(std::int64_t entries, std::int64_t longest, std::int64_t items) {
    constexpr double near = 0.75;  // of the longest, on average
    return static_cast<double>(entries) > near * static_cast<double>(longest * items);
}

std::optional<UnitOrder> order_in_step(std::int64_t items, std::int64_t heads, std::int64_t places, bool alike) {
    constexpr double enough = 0.9;  // of the places, and of the work tiles
    const auto nearly = [](std::int64_t part, std::int64_t all) {
        return static_cast<double>(part) >= enough * static_cast<double>(all);
    };
    for (std::int64_t together = 1; together <= std::min(heads, places); ++together) {
        if (heads % together != 0) continue;
        const auto most = places / together, fewest = std::max<std::int64_t>(items / most, 1);
        for (const auto chunks : {fewest, fewest + 1}) {
            const auto chunk = std::min(most, items / chunks);
            const bool are_paired = chunks * heads / together % 2 == 0 || alike;
            if (are_paired && nearly(chunk * together, places) && nearly(chunk * chunks, items))
                return UnitOrder{.first_items = static_cast<int>(chunk * chunks),
                                 .together = static_cast<int>(together),
                                 .chunk = static_cast<int>(chunk),
                                 .chunks = static_cast<int>(chunks),
                                 .in_step = true};
        }
    }
    return std::nullopt;
}

std::optional<UnitOrder> joined_order_in_step(std::span<const std::uint32_t> block_items, std::int64_t heads,
                                              std::int64_t places) {
    if (block_items.empty()) return std::nullopt;
    const auto each = block_items.front();
    if (!std::ranges::all_of(block_items, [&](std::uint32_t items) { return items == each; })) return std::nullopt;
    const auto order = order_in_step(each, heads, places, false);
    return order && order->first_items == static_cast<std::int64_t>(each) ? order : std::nullopt;
}

}  // namespace ringlab::layouts
