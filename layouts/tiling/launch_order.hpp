#pragma once

#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/tiling/work_tile_order.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ringlab::layouts {

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
/// any time: L2 then holds these rows for one query head at a time (by_head), but not for all. Work tiles of equal length,
/// as under a full mask, drift apart, because none waits for a later one: L2 holds all rows of few heads.
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
