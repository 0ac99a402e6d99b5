#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace ringlab::layouts {

/// The order in which a launch processes its work tiles. A work tile is a tile of keys (backward) or of query rows
/// (forward). The work list has it once, for all heads. What one thread block, or one cluster of them, takes up at a
/// time is a work tile of one head. Work tiles come longest first, so that short ones fill the gaps at the end of the
/// launch. But those that run at the same time should read the same tensors, so that L2 holds them. Therefore the first
/// `leading_tiles` work tiles are done for `heads_at_a_time` heads, then for the next `heads_at_a_time` heads, and so
/// on; the remaining work tiles follow one by one, each for all heads.
///
/// The first work tiles are divided into sections of `section_tiles` work tiles for `heads_at_a_time` heads: first all
/// sections of the same heads, then those of the next heads.
///
/// In lockstep (backward): a section has as many work tiles, counted for each head, as run at a time, and
/// fall_linearly() holds for the work tiles. They begin together and go over their row tiles from the common last one,
/// so they end one after another, the shortest first. Each is followed by a work tile of the next section, the longest
/// first, so those end together; they go over their row tiles from the beginning towards the common last one. Sections
/// alternate between the two, and all work tiles of a section are at the same row tiles at any time.
struct WorkTileOrder {
    int leading_tiles = 0;                ///< number of work tiles that come first
    int heads_at_a_time = 1;              ///< divides the number of heads
    int section_tiles = 1, sections = 1;  ///< section_tiles * sections == leading_tiles
    bool in_lockstep = false;
    /// Deterministic backward: a work tile goes over its row tiles head by head, instead of over all heads of a row
    /// tile before the next.
    bool by_head = false;
};

/// The row tiles that a key tile has to process: their number, and the index of the last one.
struct WorkTileReach {
    std::int64_t entries = 0;
    std::int64_t last = 0;
};

/// Whether work tiles, longest first and each with row tiles, all end at the same row tile and have lengths that
/// decrease linearly (to within a tenth of the longest), as under a causal or a full mask.
bool fall_linearly(std::span<const WorkTileReach> work_tiles);

/// Whether `work_tiles` work tiles, with `entries` row tiles in all, have about the same length: their mean is above
/// three quarters of the longest.
bool have_similar_lengths(std::int64_t entries, std::int64_t longest, std::int64_t work_tiles);

/// For `work_tiles` work tiles with fall_linearly(): the order in lockstep that takes the fewest heads at a time, such
/// that sections fill at least 90 % of the `places` where work tiles run at a time and have at least 90 % of the work
/// tiles. The number of sections is even, because they work in pairs, unless work tiles are `similar` in length.
/// nullopt if there is no such order.
std::optional<WorkTileOrder> lockstep_order(std::int64_t work_tiles, std::int64_t heads, std::int64_t places,
                                            bool similar);

/// The same for one launch over several blocks, with `block_tiles[i]` work tiles in block i for `heads` heads, all
/// with fall_linearly(). The sections of one block follow those of another, so all blocks must have the same number of
/// work tiles, and sections must leave none over; otherwise nullopt.
std::optional<WorkTileOrder> fused_lockstep_order(std::span<const std::uint32_t> block_tiles, std::int64_t heads,
                                                  std::int64_t places);

}  // namespace ringlab::layouts
