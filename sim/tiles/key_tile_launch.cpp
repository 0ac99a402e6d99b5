// Launches whose work tiles are tiles of keys: list scheduling in the kernel's order, and L2 misses on rows. See
// TileModel.

#include "layouts/tiling/launch_order.hpp"
#include "sim/terms/terms.hpp"
#include "sim/tiles/l2_model.hpp"
#include "sim/tiles/tile_model.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace ringlab::sim {
namespace {

/// Appends to `ranges` the ranges of row tiles that a key tile meets. Returns how many of these tiles are full, and how
/// many are partial.
layouts::TileCounts add_ranges(std::span<const layouts::RowHull> rows, const layouts::KeyTile& column,
                               std::vector<layouts::Interval>& ranges) {
    layouts::TileCounts found;
    const auto before = ranges.size();
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto kind = classify(rows[i], column);
        if (kind == layouts::TileKind::empty) continue;
        (kind == layouts::TileKind::full ? found.full : found.partial) += 1;
        const auto tile = static_cast<std::int64_t>(i);
        if (ranges.size() > before && ranges.back().end == tile)
            ++ranges.back().end;
        else
            ranges.push_back({tile, tile + 1});
    }
    return found;
}

std::int64_t entries_of(const layouts::TileCounts& tiles) { return tiles.full + tiles.partial; }

}  // namespace

/// Lists the key tiles in the order of the kernel's work list, longest first.
void TileModel::list_key_tiles(WorkTiles& work_tiles, std::span<const layouts::RowHull> rows,
                               std::span<const layouts::KeyTile> columns) const {
    std::vector<layouts::TileCounts> tiles;
    std::vector<layouts::Interval> ranges;
    std::vector<std::size_t> first{0}, order(columns.size());
    for (const auto& column : columns) {
        tiles.push_back(add_ranges(rows, column, ranges));
        first.push_back(ranges.size());
    }
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return entries_of(tiles[i]); });
    std::vector<layouts::WorkTileReach> reaches;
    for (const auto i : order) {
        work_tiles.tiles.push_back(tiles[i]);
        work_tiles.first_range.push_back(work_tiles.ranges.size());
        for (auto range = first[i]; range < first[i + 1]; ++range) work_tiles.ranges.push_back(ranges[range]);
        if (entries_of(tiles[i]) > 0) reaches.push_back({entries_of(tiles[i]), work_tiles.ranges.back().end - 1});
    }
    work_tiles.first_range.push_back(work_tiles.ranges.size());
    work_tiles.fall_linearly = layouts::fall_linearly(reaches);
}

TileModel::KeyTilesOfBlock TileModel::key_tiles_of_block(const Part& rows, const Part& keys) {
    const auto row_runs = runs(rows, row_storage_), key_runs = runs(keys, key_storage_);
    auto& known = key_work_tiles_[key_of(row_runs, key_runs, rows, keys, {})];
    if (!known) known = std::make_shared<const WorkTiles>(work_tiles_of(row_runs, key_runs, rows, keys));
    return {known, rows.heads.begin * schedule_.problem().batch, rows.tokens.begin / cost_.tile_rows};
}

layouts::SmGroup TileModel::sharing_of(std::span<const KeyTilesOfBlock> parts) const {
    layouts::BackwardLoad load;
    for (const auto& [work_tiles, first_head, first_tile] : parts) {
        load.steps_per_row_tile = work_tiles->query_heads_in_turn;
        for (const auto& tiles : work_tiles->tiles) {
            load.work_tiles += parts.size() > 1 || entries_of(tiles) > 0 ? work_tiles->copies : 0;
            load.entries += entries_of(tiles) * work_tiles->copies;
            load.longest = std::max(load.longest, entries_of(tiles));
        }
    }
    return layouts::sm_group_by_waves(load, static_cast<std::int64_t>(machine_.sms), cost_.groups);
}

/// In a fused launch whose blocks do not walk in lockstep, each work tile is assigned for all heads before the next
/// work tile.
layouts::WorkTileOrder TileModel::order_of(std::span<const KeyTilesOfBlock> parts, std::int64_t blocks) const {
    const auto sms = static_cast<std::int64_t>(machine_.sms);
    const auto& first = *parts.front().work_tiles;
    if (parts.size() == 1) {
        layouts::KeyWorkTiles load{.work_tiles = static_cast<std::int64_t>(first.tiles.size()),
                                   .fall_linearly = first.fall_linearly};
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
        if (!part.work_tiles->fall_linearly) return {};
        counts.push_back(static_cast<std::uint32_t>(part.work_tiles->tiles.size()));
    }
    return layouts::fused_lockstep_order(counts, first.copies, sms / blocks).value_or(layouts::WorkTileOrder{});
}

/// Time on one SM. Work tiles that walk in lockstep find their rows in the cache, so they have no misses.
double TileModel::l2_miss_sm_seconds(std::span<const KeyTilesOfBlock> parts, const LaunchPlan& plan) const {
    if (cost_.l2_miss_seconds == 0 || machine_.cache_bytes == 0 || plan.order.in_lockstep) return 0;
    const auto& p = schedule_.problem();
    const auto gradient = static_cast<double>(layouts::bytes_of(schedule_.accumulator()));
    const auto tile_bytes = static_cast<double>(cost_.tile_rows) *
                            (static_cast<double>((p.head_dim + p.value_dim) * layouts::bytes_of(p.dtype)) +
                             static_cast<double>(p.head_dim) * gradient);  // bytes of Q and dO, then of dQ
    std::vector<CachedBlock> blocks;
    for (const auto& [work_tiles, first_head, first_tile] : parts) {
        auto& block = blocks.emplace_back();
        block.kv_heads = work_tiles->copies;
        block.group = work_tiles->query_heads_in_turn;
        block.first_head = first_head;
        block.first_tile = first_tile;
        for (std::size_t i = 0; i < work_tiles->tiles.size(); ++i) {
            const auto begin = work_tiles->first_range[i], end = work_tiles->first_range[i + 1];
            block.work_tiles.push_back(std::span(work_tiles->ranges).subspan(begin, end - begin));
        }
    }
    // SMs that share a work tile take its tiles in turns, so a step takes them less time.
    constexpr double most_gap_steps = 64;
    const auto tile = cost_.full_tile_seconds / static_cast<double>(plan.sharing.sms);
    const auto gap_steps = tile > 0 ? std::min(most_gap_steps, cost_.work_tile_seconds / tile) : 0;
    return cost_.l2_miss_seconds * count_l2_misses(blocks, plan.order,
                                                   {.concurrent_work_tiles = plan.sharing.at_a_time,
                                                    .gap_steps = std::lround(gap_steps),
                                                    .room = machine_.cache_bytes / tile_bytes});
}

TileModel::LaunchPlan TileModel::plan_of(std::span<const KeyTilesOfBlock> parts) const {
    LaunchPlan plan{.sharing = sharing_of(parts)};
    plan.order = order_of(parts, plan.sharing.sms);
    double seconds = 0;  // on one SM
    for (const auto& part : parts)
        for (const auto& [each, count] : in_launch_order(*part.work_tiles, plan))
            seconds += each * static_cast<double>(count * plan.sharing.sms);
    if (seconds > 0) plan.longer += l2_miss_sm_seconds(parts, plan) / seconds;
    return plan;
}

std::vector<WorkTileGroup> TileModel::in_launch_order(const WorkTiles& work_tiles, const LaunchPlan& plan) const {
    std::vector<WorkTileGroup> groups;
    layouts::for_each_work_tile_run(
        plan.order, static_cast<std::int64_t>(work_tiles.tiles.size()), work_tiles.copies,
        [&](const layouts::WorkTileRun& run) {
            const auto seconds =
                plan.longer *
                work_tile_seconds(cost_, {.tiles = work_tiles.tiles[static_cast<std::size_t>(run.work_tile)],
                                          .heads_in_turn = work_tiles.query_heads_in_turn,
                                          .sms = plan.sharing.sms});
            if (groups.empty() || groups.back().seconds != seconds) groups.push_back({seconds, 0});
            groups.back().count += run.heads;
        });
    return groups;
}

TileModel::Launch TileModel::key_launch(const KeyTilesOfBlock& part, double missing) const {
    const auto plan = plan_of({&part, 1});
    const auto groups = in_launch_order(*part.work_tiles, plan);
    Launch found{.seconds = list_schedule(groups, concurrent_work_tiles(plan.sharing, missing)),
                 .tiles = plan.longer * tile_seconds(*part.work_tiles)};
    for (const auto& group : groups) found.longest_work_tile = std::max(found.longest_work_tile, group.seconds);
    return found;
}

const TileModel::ScheduledBlock& TileModel::scheduled_block(const Part& rows, const Part& keys) {
    const auto row_runs = runs(rows, row_storage_), key_runs = runs(keys, key_storage_);
    auto [known, is_new] = scheduled_blocks_.try_emplace(key_of(row_runs, key_runs, rows, keys, {}));
    if (!is_new) return known->second;
    const auto part = key_tiles_of_block(rows, keys);
    const auto plan = plan_of({&part, 1});
    auto& block = known->second;
    block = {in_launch_order(*part.work_tiles, plan), plan.sharing, 0};
    block.seconds = list_schedule(block.groups, plan.sharing.at_a_time);
    return block;
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
