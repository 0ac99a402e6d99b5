// Launches whose work tiles are tiles of keys: list scheduling in the kernel's order, and L2 misses on rows. See
// TileModel.

#include "layouts/launch_order.hpp"
#include "sim/cost.hpp"
#include "sim/row_cache.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace ringlab::sim {
namespace {

/// Appends to `ranges` the ranges of row tiles that a tile of keys meets. Returns how many of them are full and
/// partial.
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

/// Sorts the tiles of keys as the kernel's work list does, longest first.
void TileModel::list_keys(Items& items, std::span<const layouts::RowHull> rows,
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
        items.tiles.push_back(tiles[i]);
        items.first_range.push_back(items.ranges.size());
        for (auto range = first[i]; range < first[i + 1]; ++range) items.ranges.push_back(ranges[range]);
        if (entries_of(tiles[i]) > 0) reaches.push_back({entries_of(tiles[i]), items.ranges.back().end - 1});
    }
    items.first_range.push_back(items.ranges.size());
    items.fall_linearly = layouts::fall_linearly(reaches);
}

TileModel::KeyPart TileModel::key_part(const Part& rows, const Part& keys) {
    const auto row_runs = runs(rows, row_storage_), key_runs = runs(keys, key_storage_);
    auto& known = listed_[key_of(row_runs, key_runs, rows, keys, {})];
    if (!known) known = std::make_shared<const Items>(items_of(row_runs, key_runs, rows, keys));
    return {known, rows.heads.begin * schedule_.problem().batch, rows.tokens.begin / cost_.tile_rows};
}

layouts::SmGroup TileModel::sharing_of(std::span<const KeyPart> parts) const {
    layouts::BackwardLoad load;
    for (const auto& [items, first_head, first_tile] : parts) {
        load.steps_per_row_tile = items->in_turn;
        for (const auto& tiles : items->tiles) {
            load.items += parts.size() > 1 || entries_of(tiles) > 0 ? items->copies : 0;
            load.entries += entries_of(tiles) * items->copies;
            load.longest = std::max(load.longest, entries_of(tiles));
        }
    }
    return layouts::choose_sm_group(load, static_cast<std::int64_t>(machine_.multiprocessors), cost_.groups);
}

/// In a fused launch whose blocks do not walk in step, each work tile is given out for all heads before the next one.
layouts::WorkTileOrder TileModel::order_of(std::span<const KeyPart> parts, std::int64_t blocks) const {
    const auto sms = static_cast<std::int64_t>(machine_.multiprocessors);
    const auto& first = *parts.front().items;
    if (parts.size() == 1) {
        layouts::KeyWorkTiles load{.items = static_cast<std::int64_t>(first.tiles.size()),
                               .fall_linearly = first.fall_linearly};
        for (const auto& tiles : first.tiles) {
            load.busy += entries_of(tiles) > 0;
            load.entries += entries_of(tiles);
            load.longest = std::max(load.longest, entries_of(tiles));
        }
        return layouts::backward_order(
            load, {.heads = first.copies, .group = first.in_turn, .sms = sms, .blocks = blocks});
    }
    std::vector<std::uint32_t> counts;
    for (const auto& part : parts) {
        if (!part.items->fall_linearly) return {};
        counts.push_back(static_cast<std::uint32_t>(part.items->tiles.size()));
    }
    return layouts::fused_lockstep_order(counts, first.copies, sms / blocks).value_or(layouts::WorkTileOrder{});
}

/// Time on one SM. Work tiles that walk in step find their rows in the cache, so they have no misses.
double TileModel::rereading_seconds(std::span<const KeyPart> parts, const Way& way) const {
    if (cost_.reread_seconds == 0 || machine_.cache_bytes == 0 || way.order.in_lockstep) return 0;
    const auto& p = schedule_.problem();
    const auto gradient = static_cast<double>(layouts::bytes_of(schedule_.accumulator()));
    const auto tile_bytes = static_cast<double>(cost_.tile_rows) *
                            (static_cast<double>((p.head_dim + p.value_dim) * layouts::bytes_of(p.dtype)) +
                             static_cast<double>(p.head_dim) * gradient);  // of Q and dO, then of dQ
    std::vector<WalkedBlock> blocks;
    for (const auto& [items, first_head, first_tile] : parts) {
        auto& block = blocks.emplace_back();
        block.kv_heads = items->copies;
        block.group = items->in_turn;
        block.first_head = first_head;
        block.first_tile = first_tile;
        for (std::size_t i = 0; i < items->tiles.size(); ++i) {
            const auto begin = items->first_range[i], end = items->first_range[i + 1];
            block.items.push_back(std::span(items->ranges).subspan(begin, end - begin));
        }
    }
    // SMs that share a work tile take its tiles in turns, so a step takes them less time.
    constexpr double longest_seam = 64;
    const auto tile = cost_.full_tile_seconds / static_cast<double>(way.sharing.sms);
    const auto seam = tile > 0 ? std::min(longest_seam, cost_.item_seconds / tile) : 0;
    return cost_.reread_seconds *
           reread_tiles(
               blocks, way.order,
               {.places = way.sharing.at_a_time, .seam = std::lround(seam), .room = machine_.cache_bytes / tile_bytes});
}

TileModel::Way TileModel::way_of(std::span<const KeyPart> parts, bool waits) const {
    Way way{.sharing = sharing_of(parts)};
    way.order = order_of(parts, way.sharing.sms);
    double seconds = 0;  // on one SM
    for (const auto& part : parts)
        for (const auto& [each, count] : dealt(*part.items, way))
            seconds += each * static_cast<double>(count * way.sharing.sms);
    if (seconds > 0) way.longer += rereading_seconds(parts, way) / seconds;
    if (waits) way.longer *= cost_.joined_ratio;
    return way;
}

std::vector<ItemGroup> TileModel::dealt(const Items& items, const Way& way) const {
    std::vector<ItemGroup> groups;
    layouts::for_each_work_tile_run(
        way.order, static_cast<std::int64_t>(items.tiles.size()), items.copies, [&](const layouts::WorkTileRun& run) {
            const auto seconds = way.longer * item_seconds(items.tiles[static_cast<std::size_t>(run.item)],
                                                           items.in_turn, way.sharing.sms);
            if (groups.empty() || groups.back().seconds != seconds) groups.push_back({seconds, 0});
            groups.back().count += run.heads;
        });
    return groups;
}

TileModel::Launch TileModel::key_launch(const KeyPart& part, double without) const {
    const auto way = way_of({&part, 1}, false);
    const auto groups = dealt(*part.items, way);
    Launch found{.seconds = makespan_in_order(groups, places(way.sharing, without)),
                 .tiles = way.longer * tile_seconds(*part.items)};
    for (const auto& group : groups) found.item = std::max(found.item, group.seconds);
    return found;
}

const TileModel::Dealt& TileModel::dealt_block(const Part& rows, const Part& keys) {
    const auto row_runs = runs(rows, row_storage_), key_runs = runs(keys, key_storage_);
    auto [known, is_new] = dealt_.try_emplace(key_of(row_runs, key_runs, rows, keys, {}));
    if (!is_new) return known->second;
    const auto part = key_part(rows, keys);
    const auto way = way_of({&part, 1}, false);
    auto& block = known->second;
    block = {dealt(*part.items, way), way.sharing, 0};
    block.seconds = makespan_in_order(block.groups, way.sharing.at_a_time);
    return block;
}

double TileModel::longer_beside(std::span<const Without> without, const Part& rows, const Part& keys) {
    const auto& block = dealt_block(rows, keys);
    if (block.seconds == 0) return 1;
    std::vector<ProcessorCount> counts;
    for (const auto& [from, sms] : without)
        counts.push_back({from * block.seconds, places(block.sharing, sms)});
    return makespan_in_order(block.groups, counts) / block.seconds;
}

double TileModel::idle_processors(const Part& rows, const Part& keys) {
    const auto& block = dealt_block(rows, keys);
    std::int64_t items = 0;
    for (const auto& group : block.groups) items += group.count;
    return std::max(0.0, machine_.multiprocessors - static_cast<double>(items * block.sharing.sms));
}

}  // namespace ringlab::sim
