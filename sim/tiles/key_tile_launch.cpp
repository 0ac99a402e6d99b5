// Launches whose work tiles are tiles of keys: list scheduling in the kernel's order. See TileModel.

#include "layouts/layouts/launch_order.hpp"
#include "sim/machine/terms.hpp"
#include "sim/tiles/tile_model.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace ringlab::sim {
namespace {

/// Full and partial row tiles that a key tile meets, and the last of them.
struct RowTiles {
    layouts::TileCounts counts;
    std::int64_t last = 0;
};

RowTiles row_tiles_of(std::span<const layouts::RowHull> rows, const layouts::KeyTile& column) {
    RowTiles found;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto kind = classify(rows[i], column);
        if (kind == layouts::TileKind::empty) continue;
        (kind == layouts::TileKind::full ? found.counts.full : found.counts.partial) += 1;
        found.last = static_cast<std::int64_t>(i);
    }
    return found;
}

std::int64_t entries_of(const layouts::TileCounts& tiles) { return tiles.full + tiles.partial; }

}  // namespace

/// Lists the key tiles in the order of the kernel's work list.
void TileModel::list_key_tiles(WorkTiles& work_tiles, std::span<const layouts::RowHull> rows,
                               std::span<const layouts::KeyTile> columns) const {
    std::vector<RowTiles> found;
    for (const auto& column : columns) found.push_back(row_tiles_of(rows, column));
    std::ranges::stable_sort(found, std::greater{}, [](const RowTiles& one) { return entries_of(one.counts); });
    std::vector<layouts::WorkTileReach> reaches;
    for (const auto& [counts, last] : found)
        if (entries_of(counts) > 0) reaches.push_back({entries_of(counts), last});
    work_tiles.fall_linearly = layouts::fall_linearly(reaches);
    for (const auto& one : found) work_tiles.tiles.push_back(one.counts);
    if (work_tiles.fall_linearly || cost_.launch_rule != KeyLaunchRule::list_schedule) return;
    const auto groups = layouts::row_groups_of(reaches);
    for (std::size_t i = 0; i < reaches.size(); ++i) work_tiles.tiles[i] = found[groups.order[i]].counts;
    work_tiles.row_groups = groups.count;
}

TileModel::KeyTiles TileModel::key_tiles_of_block(const Part& rows, const Part& keys) {
    const auto block = block_of(rows, keys);
    auto& found = known(block, {}).key_tiles;
    if (!found) found = std::make_shared<const WorkTiles>(work_tiles_of(block));
    return found;
}

layouts::SmGroup TileModel::sharing_of(std::span<const KeyTiles> parts) const {
    layouts::BackwardLoad load;
    for (const auto& work_tiles : parts) {
        load.steps_per_row_tile = work_tiles->query_heads_in_turn;
        for (const auto& tiles : work_tiles->tiles) {
            load.work_tiles += parts.size() > 1 || entries_of(tiles) > 0 ? work_tiles->copies : 0;
            load.entries += entries_of(tiles) * work_tiles->copies;
            load.longest = std::max(load.longest, entries_of(tiles));
        }
    }
    const auto choose =
        cost_.launch_rule == KeyLaunchRule::waves ? layouts::sm_group_by_waves : layouts::sm_group_by_list_schedule;
    return choose(load, static_cast<std::int64_t>(machine_.sms), cost_.groups);
}

/// In a fused launch whose blocks do not walk in lockstep, each work tile is assigned for all heads before the next
/// work tile.
layouts::WorkTileOrder TileModel::order_of(std::span<const KeyTiles> parts, std::int64_t blocks) const {
    const auto sms = static_cast<std::int64_t>(machine_.sms);
    const auto& first = *parts.front();
    if (parts.size() == 1) {
        layouts::KeyWorkTiles load{.work_tiles = static_cast<std::int64_t>(first.tiles.size()),
                                   .fall_linearly = first.fall_linearly,
                                   .row_groups = first.row_groups};
        for (const auto& tiles : first.tiles) {
            load.busy += entries_of(tiles) > 0;
            load.entries += entries_of(tiles);
            load.longest = std::max(load.longest, entries_of(tiles));
        }
        return layouts::backward_order(
            load, {.heads = first.copies, .group = first.query_heads_in_turn, .sms = sms, .blocks = blocks});
    }
    std::vector<std::uint32_t> counts;
    for (const auto& part : parts) {
        if (!part->fall_linearly) return {};
        counts.push_back(static_cast<std::uint32_t>(part->tiles.size()));
    }
    return layouts::fused_lockstep_order(counts, first.copies, sms / blocks).value_or(layouts::WorkTileOrder{});
}

TileModel::LaunchOrder TileModel::launch_order_of(std::span<const KeyTiles> parts) const {
    const auto sharing = sharing_of(parts);
    return {sharing, order_of(parts, sharing.sms)};
}

std::vector<WorkTileGroup> TileModel::in_launch_order(const WorkTiles& work_tiles,
                                                      const LaunchOrder& launch_order) const {
    std::vector<WorkTileGroup> groups;
    layouts::for_each_work_tile_run(launch_order.order, static_cast<std::int64_t>(work_tiles.tiles.size()),
                                    work_tiles.copies, [&](const layouts::WorkTileRun& run) {
                                        const auto seconds = work_tile_seconds(
                                            cost_, {.tiles = work_tiles.tiles[static_cast<std::size_t>(run.work_tile)],
                                                    .heads_in_turn = work_tiles.query_heads_in_turn,
                                                    .sms = launch_order.sharing.sms});
                                        if (groups.empty() || groups.back().seconds != seconds)
                                            groups.push_back({seconds, 0});
                                        groups.back().count += run.heads;
                                    });
    return groups;
}

TileModel::Launch TileModel::key_launch(const KeyTiles& part, double missing) const {
    const auto launch_order = launch_order_of({&part, 1});
    const auto groups = in_launch_order(*part, launch_order);
    Launch found{.seconds = list_schedule(groups, concurrent_work_tiles(launch_order.sharing, missing)),
                 .tiles = tile_seconds(*part)};
    for (const auto& group : groups) found.longest_work_tile = std::max(found.longest_work_tile, group.seconds);
    return found;
}

const TileModel::ScheduledBlock& TileModel::scheduled_block(const Part& rows, const Part& keys) {
    auto& found = known(block_of(rows, keys), {}).scheduled;
    if (found) return *found;
    const auto part = key_tiles_of_block(rows, keys);
    const auto launch_order = launch_order_of({&part, 1});
    found = {in_launch_order(*part, launch_order), launch_order.sharing, 0};
    found->seconds = list_schedule(found->groups, launch_order.sharing.at_a_time);
    return *found;
}

double TileModel::slowdown_while_sms_missing(std::span<const MissingSms> missing, const Part& rows, const Part& keys) {
    const auto& block = scheduled_block(rows, keys);
    if (block.seconds == 0) return 1;
    std::vector<SmsFrom> counts;
    for (const auto& [from, sms] : missing)
        counts.push_back({from * block.seconds, concurrent_work_tiles(block.sharing, sms)});
    return list_schedule(block.groups, counts) / block.seconds;
}

double TileModel::idle_sms(const Part& rows, const Part& keys) {
    const auto& block = scheduled_block(rows, keys);
    std::int64_t work_tiles = 0;
    for (const auto& group : block.groups) work_tiles += group.count;
    return std::max(0.0, machine_.sms - static_cast<double>(work_tiles * block.sharing.sms));
}

}  // namespace ringlab::sim
