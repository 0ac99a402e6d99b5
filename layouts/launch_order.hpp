#pragma once

#include "layouts/unit_order.hpp"

#include <cstdint>
#include <functional>

namespace ringlab::layouts {

/// Tiles of keys of a head that a backward launch of one block has as items, the longest first.
struct KeyItems {
    std::int64_t items = 0;    ///< those without entries, which come last, too
    std::int64_t busy = 0;     ///< those with
    std::int64_t entries = 0;  ///< of all
    std::int64_t longest = 0;  ///< entries of the first
    bool fall_evenly = false;  ///< those that are busy
};

/// Where units of a launch run: kv heads of all batch elements, query heads of each, processors, and how many of them
/// share an item.
struct LaunchPlaces {
    std::int64_t heads = 1;
    std::int64_t group = 1;
    std::int64_t processors = 1;
    std::int64_t blocks = 1;
};

/// In which order a backward launch of one block goes over its units: in step if items let it. Else as few kv heads at
/// a time as fill the processors, so that L2 holds the Q, dO and dQ that they go over; but for the shorter half of
/// items of unequal length, which have to be the last.
UnitOrder backward_order(const KeyItems& items, const LaunchPlaces& places);

/// The same where dq is added to in a fixed order. An item is a step or more behind the one before it at each tile, so
/// many items of a head together wait for each other. But few that stay at a tile for the steps of many heads keep
/// together, and L2 holds their rows.
UnitOrder backward_order_with_turns(const KeyItems& items, const LaunchPlaces& places);

/// In which order a forward launch of one block goes over its units, items of query heads: all items for those of as
/// many kv heads as have K and V that L2 holds beside what passes through it, then for others. `head_bytes`: K and V of
/// a kv head; heads of all batch elements.
UnitOrder forward_order(std::int64_t items, std::int64_t kv_heads, std::int64_t group, std::int64_t head_bytes);

/// Units that follow each other: an item for some heads.
struct UnitRun {
    std::int64_t item = 0;
    std::int64_t first_head = 0, heads = 1;
};

/// Calls `visit` for the units of a launch of so many items and heads, in order: what place_of() of the kernels tells
/// of each unit by its number.
void for_each_unit_run(const UnitOrder& order, std::int64_t items, std::int64_t heads,
                       const std::function<void(const UnitRun&)>& visit);

}  // namespace ringlab::layouts
