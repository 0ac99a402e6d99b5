#pragma once

#include "layouts/launch_order.hpp"
#include "layouts/units.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::sim {

/// What an item of keys walks over: tiles of rows, for each of the query heads of its kv head.
struct RowWalk {
    std::span<const layouts::Interval> tiles;  ///< ranges of them, none empty
    double before = 0;                         ///< seconds that the item takes before its first tile
    double each = 0;                           ///< and for each tile of a query head
};

/// Items of one block of a launch, and where its rows lie among those of the launch.
struct WalkedBlock {
    std::vector<RowWalk> items;
    std::int64_t kv_heads = 1;  ///< of all batch elements
    std::int64_t group = 1;     ///< query heads of each
    std::int64_t first_head = 0, first_tile = 0;
};

/// How many tiles of rows a launch reads again that a cache of `room` of them, of which those go first that were read
/// longest ago, has held and lost: items walk head by head, each of `places` taking the next one as soon as it is free.
///
/// Of very many steps it looks at a part of the tiles alone, with as much less room.
double reread_tiles(std::span<const WalkedBlock> blocks, const layouts::UnitOrder& order, std::int64_t places,
                    double room);

}  // namespace ringlab::sim
