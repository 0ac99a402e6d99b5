#pragma once

#include "layouts/launch_order.hpp"
#include "layouts/units.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::sim {

/// Items of keys of one block of a launch, where its rows lie among those of the launch, and what each item walks over,
/// if anything: ranges of tiles of rows, for each of the query heads of its kv head.
struct WalkedBlock {
    std::vector<std::span<const layouts::Interval>> items;
    std::int64_t kv_heads = 1;  ///< of all batch elements
    std::int64_t group = 1;     ///< query heads of each
    std::int64_t first_head = 0, first_tile = 0;
};

/// Where units of a launch walk.
struct Walks {
    std::int64_t places = 1;  ///< that walk at a time: each takes the next unit as soon as it is free
    std::int64_t seam = 0;    ///< between two units, in the time of so many tiles
    double room = 0;          ///< tiles that the cache holds; those go first that were read longest ago
};

/// How many tiles of rows a launch reads again that its cache has held and lost: items walk head by head, a tile at a
/// time, all at one pace.
///
/// Of very many steps it looks at a part of the tiles alone, with as much less room.
double reread_tiles(std::span<const WalkedBlock> blocks, const layouts::UnitOrder& order, const Walks& walks);

}  // namespace ringlab::sim
