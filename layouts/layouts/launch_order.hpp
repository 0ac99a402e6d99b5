#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

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
    int leading_tiles = 0;    ///< number of work tiles that come first
    int heads_at_a_time = 1;  ///< divides the number of heads
    int section_tiles = 1,
        sections = 1;  ///< section_tiles * sections == leading_tiles
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

/// Work of a backward launch whose work tiles are key tiles, over all heads and batch elements.
struct BackwardLoad {
    std::int64_t work_tiles = 0;          ///< work tiles that have something to do
    std::int64_t entries = 0;             ///< row tiles that all work tiles together process
    std::int64_t longest = 0;             ///< row tiles of the longest work tile
    std::int64_t steps_per_row_tile = 1;  ///< steps that a row tile takes: query heads per kv head
};

/// How many SMs split a work tile between them (thread blocks of a cluster), and how many such groups run at a time.
struct SmGroup {
    std::int64_t sms = 1;
    std::int64_t at_a_time = 1;
};

/// The work tiles of one head in a backward launch over one block: its key tiles, longest first. Their length is the
/// number of row tiles that they process.
struct KeyWorkTiles {
    std::int64_t work_tiles = 0;  ///< all work tiles, including those without row tiles, which come last
    std::int64_t busy = 0;        ///< work tiles with row tiles
    std::int64_t entries = 0;     ///< row tiles of all work tiles
    std::int64_t longest = 0;     ///< row tiles of the first work tile
    bool fall_linearly = false;   ///< fall_linearly() of those with row tiles
    std::int64_t row_groups = 1;  ///< RowGroups::count, if the list is in that order; otherwise 1
};

/// Groups of work tiles that end at the same row tile, as those of each document of a packed sequence do.
struct RowGroups {
    std::int64_t count = 1;
    std::vector<std::size_t> order;  ///< of the work tiles: group by group, if there is more than one group
};

/// Groups of `work_tiles`, which come longest first and all have row tiles. So do the groups, each by its longest work
/// tile, and the work tiles of a group. One group, in the order as it is, if groups had fewer than two work tiles on
/// average.
RowGroups row_groups_of(std::span<const WorkTileReach> work_tiles);

/// Heads of a launch and the SMs that it runs on.
struct LaunchShape {
    std::int64_t heads = 1;   ///< kv heads of all batch elements
    std::int64_t group = 1;   ///< query heads per kv head
    std::int64_t sms = 1;     ///< SMs of the device
    std::int64_t blocks = 1;  ///< thread blocks, each on an SM, that split one work tile
};

/// How many of the device's `sms` (SMs) split each work tile: one of `groups`, or a single SM. It is the group with the
/// shortest launch, whose time is estimated as a list schedule of work tiles of falling lengths. The kernels choose by
/// this rule.
SmGroup sm_group_by_list_schedule(const BackwardLoad& load, std::int64_t sms, std::span<const SmGroup> groups);

/// The same, but the time of a launch is estimated as the number of full waves times the mean work tile, and at least
/// the longest work tile. Earlier kernels chose by this rule, and machine files that were calibrated with them say so.
/// The two differ for launches with less than two waves of unequal work tiles.
SmGroup sm_group_by_waves(const BackwardLoad& load, std::int64_t sms, std::span<const SmGroup> groups);

/// Order of a backward launch over one block, see WorkTileOrder:
/// - in lockstep, if the lengths of work tiles allow it;
/// - otherwise, if work tiles that share rows are together, as many kv heads at a time as fill the SMs with one group,
///   because all that a group reads is then read at about the same time;
/// - otherwise as few kv heads at a time as fill the SMs, so that L2 holds the Q, dO and dQ that they read;
/// - if then the lengths of work tiles differ, the shorter half of them comes last, for all heads.
WorkTileOrder backward_order(const KeyWorkTiles& work_tiles, const LaunchShape& places);

/// The same for a launch whose work tiles add to each row tile of dQ in a fixed order (deterministic). A work tile
/// reaches a row tile at least one step after its predecessor, so many work tiles of one head at a time wait for each
/// other. But a few of them, which stay at a row tile for the steps of many query heads, keep together, and L2 holds
/// their rows. Where work tiles do not end at the same row tile, as under a window, they are at different row tiles at
/// any time: L2 then holds these rows for one query head at a time (by_head), but not for all. Work tiles of equal
/// length, as under a full mask, drift apart, because none waits for a later one: L2 holds all rows of few heads.
WorkTileOrder deterministic_backward_order(const KeyWorkTiles& work_tiles, const LaunchShape& places);

/// Order of a forward launch over one block, whose work tiles are tiles of query rows: all work tiles for the query
/// heads of as many kv heads as have K and V that fit into L2 beside Q and O, then for those of the next kv heads.
/// `kv_heads`: of all batch elements; `group`: query heads per kv head; `head_bytes`: bytes of K and V of a kv head.
WorkTileOrder forward_order(std::int64_t work_tiles, std::int64_t kv_heads, std::int64_t group,
                            std::int64_t head_bytes);

/// Consecutive work of a launch: one work tile of the list for some heads.
struct WorkTileRun {
    std::int64_t work_tile = 0;
    std::int64_t first_head = 0, heads = 1;
};

/// Calls `visit` for all heads of all work tiles of a launch, in launch order. It is the order that place_of() of the
/// kernels computes.
void for_each_work_tile_run(const WorkTileOrder& order, std::int64_t work_tiles, std::int64_t heads,
                            const std::function<void(const WorkTileRun&)>& visit);

}  // namespace ringlab::layouts
