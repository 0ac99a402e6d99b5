#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace ringlab::layouts {

/// In which order a launch goes over its units, an item of the work list and a head each. Items come longest first, so
/// that short ones fill the gaps at the end; but what runs at the same time should read the same tensors, or L2 does
/// not hold them. So the first items are done for `together` heads, then for as many others; the rest by item, all
/// heads.
///
/// The first items go in sections, `chunk` of them for `together` heads: all chunks for the same heads, then for
/// others. Backward, `in_step`: a section is what runs at a time, and its items' lengths fall evenly to the same last
/// row tile. Then one section begins at once, and the next, its longest item where the shortest ended, ends at once. So
/// they go over their rows from the end and from the beginning in turns: blocks of a section are at the same rows all
/// the time.
struct UnitOrder {
    int first_items = 0;
    int together = 1;           // divides the heads
    int chunk = 1, chunks = 1;  // chunk * chunks are the first items
    bool in_step = false;
};

/// The row tiles that an item of keys meets: how many, and the last of them.
struct ItemReach {
    std::int64_t entries = 0;
    std::int64_t last = 0;
};

/// Whether items that have anything to do, the longest first, all end at the same row tile, and their lengths lie on a
/// line from the longest to the shortest, as under a causal or a full mask.
bool fall_evenly(std::span<const ItemReach> items);

/// Whether so many items, with so many entries in all, are of about the same length.
bool are_alike(std::int64_t entries, std::int64_t longest, std::int64_t items);

/// Of items whose lengths fall evenly, sections that run in step: as few heads at a time as make sections that nearly
/// fill the `places` where units run at a time, and that leave few items over; each with another section to go with,
/// unless items are `alike`. Nothing where there are no such sections.
std::optional<UnitOrder> order_in_step(std::int64_t items, std::int64_t heads, std::int64_t places, bool alike);

/// The same of a launch of several blocks, each with so many items and `heads`, all falling evenly: sections of one
/// block come after those of another, so all must have as many items, and none left over.
std::optional<UnitOrder> joined_order_in_step(std::span<const std::uint32_t> block_items, std::int64_t heads,
                                              std::int64_t places);

}  // namespace ringlab::layouts
