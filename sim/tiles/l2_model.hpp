#pragma once

#include "layouts/basics/basic_types.hpp"
#include "layouts/tiling/launch_order.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::sim {

/// Work tiles of keys of one block of a launch. `work_tiles` has, for each, the ranges of row tiles that it walks
/// through, once for each query head of its kv head. Block, head and tile are counted within the launch.
struct CachedBlock {
    std::vector<std::span<const layouts::Interval>> work_tiles;
    std::int64_t kv_heads = 1;  ///< of all batch elements together
    std::int64_t group = 1;     ///< query heads of each kv head
    std::int64_t first_head = 0, first_tile = 0;
};

/// How the work tiles of a launch walk through the row tiles.
struct L2Model {
    std::int64_t concurrent_work_tiles =
        1;                       ///< work tiles that walk at the same time; each free place takes the next one
    std::int64_t gap_steps = 0;  ///< pause between two work tiles, in steps of one tile
    double room = 0;             ///< row tiles that the cache holds; the least recently used one is evicted
};

/// Number of L2 misses on row tiles that the cache held before and has evicted. Work tiles walk head by head, one row
/// tile a step, all at the same pace.
///
/// If there are very many steps, only a sample of the row tiles is followed, in a cache smaller by the same factor.
double count_l2_misses(std::span<const CachedBlock> blocks, const layouts::WorkTileOrder& order, const L2Model& model);

}  // namespace ringlab::sim
