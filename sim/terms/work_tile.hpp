#pragma once

#include "layouts/layouts/visible_pairs.hpp"
#include "sim/terms/price.hpp"

/// Terms of the time of one work tile: the sum of their of_work_tile().
namespace ringlab::sim::terms {

/// What a work tile has to do.
struct WorkTileLoad {
    layouts::TileCounts tiles;  ///< for each query head
    bool begins = true;         ///< whether this is the first block of its rows
    int heads_in_turn = 1;      ///< query heads that it takes one after another
    std::int64_t sms = 1;       ///< that share it
    int visits = 1;             ///< blocks of the launch in which it meets any tile
};

struct WorkTilePrologue {
    static constexpr auto name = "work-tile", effect = "prologue, loads and stores of a work tile";
    static constexpr Price<AttentionCost> prices[] = {{"work_tile_us", &AttentionCost::work_tile_seconds, Fitted::yes}};

    static double of_work_tile(const AttentionCost& cost, const WorkTileLoad& load) {
        return cost.work_tile_seconds * load.visits;
    }
};

/// Full tiles, and partial ones, which the mask cuts. The term that `--without` removes is what partial ones cost more.
struct Tiles {
    static constexpr auto name = "partial-tiles", effect = "that tiles which the mask cuts cost more than full ones";
    static constexpr Price<AttentionCost> prices[] = {
        {"full_tile_us", &AttentionCost::full_tile_seconds, Fitted::yes},
        {"partial_tile_us", &AttentionCost::partial_tile_seconds, Fitted::yes}};

    static double of_tiles(const AttentionCost& cost, const layouts::TileCounts& tiles) {
        return cost.full_tile_seconds * static_cast<double>(tiles.full) +
               cost.partial_tile_seconds * static_cast<double>(tiles.partial);
    }
    static double of_work_tile(const AttentionCost& cost, const WorkTileLoad& load) {
        return of_tiles(cost, load.tiles) * load.heads_in_turn / static_cast<double>(load.sms);
    }
    static void remove(AttentionCost& cost) { cost.partial_tile_seconds = cost.full_tile_seconds; }
};

struct Resume {
    static constexpr auto name = "resume", effect = "read of the fp32 state of earlier blocks";
    static constexpr Price<AttentionCost> prices[] = {
        {"resume_us", &AttentionCost::resume_seconds, Fitted::for_query_tiles}};

    static double of_work_tile(const AttentionCost& cost, const WorkTileLoad& load) {
        return cost.work_tile == WorkTile::query_tile && !load.begins ? cost.resume_seconds : 0;
    }
};

}  // namespace ringlab::sim::terms
