// Time of an attention kernel: list scheduling of its work tiles on SMs. See TileModel.

#include "sim/tiles/tile_model.hpp"

#include "layouts/layouts/launch_order.hpp"
#include "sim/machine/terms.hpp"
#include "sim/tiles/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>

namespace ringlab::sim {

using layouts::Bound;

namespace {

// Up to this many pairs of (piece of rows, run of keys) a block's memo key describes how the mask cuts it. With more,
// the key is the block itself.
constexpr std::size_t max_described_pairs = 64;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0); }

/// Appends where `bound` lies among the keys of a run, for all `rows`, to a memo key. {0, 0, 0}: at or below the first
/// key; {0, count, 0}: beyond the last one. Otherwise {1, index at the first row, step per row}, or, if steps are not
/// whole, positions relative to the first key.
void describe_bound(std::vector<std::int64_t>& key, Bound bound, const Run& rows, const Run& keys) {
    const auto first = bound.at(rows.first) - keys.first, last = bound.at(rows.last()) - keys.first;
    const auto index = [&](std::int64_t offset) {
        return std::clamp<std::int64_t>(ceil_div(offset, keys.stride), 0, keys.count);
    };
    const auto low = index(first), high = index(last);
    const auto step = bound.slope * rows.stride;
    const bool one_value = low == high;
    if (one_value) {
        key.insert(key.end(), {0, low, 0});
    } else if (step % keys.stride == 0) {
        key.insert(key.end(), {1, ceil_div(first, keys.stride), step / keys.stride});
    } else {
        key.insert(key.end(), {1 + keys.stride, first, step});
    }
}

/// Share of the rows or columns of tiles that meet any tile.
double busy_share(std::span<const layouts::TileCounts> all) {
    const auto some = std::ranges::count_if(all, [](const auto& tiles) { return tiles.full + tiles.partial > 0; });
    return static_cast<double>(some) / std::max(1.0, static_cast<double>(all.size()));
}

/// Seconds that the memory needs for the rows of as many work tiles as there are SMs, with `bytes` for each number of
/// O. A work tile that sees nothing and continues rows takes that much longer: it reads the rows before it writes them,
/// and so do those on all other SMs at about the same time, so nothing hides the traffic.
double traffic_seconds(const TileModel::WorkTiles& part, double bytes, const Machine& machine) {
    const auto work_tiles = static_cast<double>(std::ssize(part.tiles) * part.copies);
    return bytes * part.sizes.outputs / work_tiles * machine.sms / machine.memory_bytes_per_second;
}

/// Calls visit(segment, rows of the run in it), in order.
template <class Visit>
void for_each_piece(const layouts::Mask& mask, const Run& run, Visit visit) {
    for (std::int64_t i = 0; i < run.count;) {
        const auto& segment = mask.segments()[mask.segment_of(run.at(i))];
        const auto end = std::min(run.count, ceil_div(segment.rows.end - run.first, run.stride));
        visit(segment, layouts::slice(run, i, end));
        i = end;
    }
}

}  // namespace

TileModel::TileModel(const Schedule& schedule, const Machine& machine)
    : schedule_(schedule), machine_(machine), cost_(attention_cost(machine, schedule)) {
    const auto stretch = tile_time_factor(machine, schedule);
    cost_.full_tile_seconds *= stretch;
    cost_.partial_tile_seconds *= stretch;
    if (!schedule.problem().dropout.drops()) return;
    // One random number for each pair, whatever the dims.
    cost_.full_tile_seconds += std::max(0.0, cost_.dropout_tile_seconds);
    cost_.partial_tile_seconds += std::max(0.0, cost_.dropout_tile_seconds);
}

/// The runs of a part. Those of a whole block exist already; others are made in `storage`.
std::span<const Run> TileModel::runs(const Part& part, std::vector<Run>& storage) const {
    if (schedule_.is_whole(part)) return schedule_.block(part.block);
    return storage = schedule_.runs(part);
}

TileModel::Block TileModel::block_of(const Part& rows, const Part& keys) {
    return {rows, keys, runs(rows, row_storage_), runs(keys, key_storage_)};
}

void TileModel::describe(const Block& block) {
    const auto& [rows, keys, row_runs, key_runs] = block;
    const auto& mask = schedule_.mask();
    key_.clear();
    const auto by_name = [&] {
        key_ = {-1, rows.block, rows.tokens.begin, rows.tokens.end, keys.block, keys.tokens.begin, keys.tokens.end};
    };

    // Runs of keys must be sorted, so that a tile's first and last key are those of its first and last run. All keys
    // from the first to the last must be valid, so that padding adds nothing to the description.
    for (std::size_t i = 1; i < key_runs.size(); ++i)
        if (key_runs[i].first <= key_runs[i - 1].last()) return by_name();
    const auto valid = std::any_of(mask.valid().begin(), mask.valid().end(), [&](const layouts::Interval& interval) {
        return !key_runs.empty() && interval.contains(key_runs.front().first) &&
               interval.contains(key_runs.back().last());
    });
    if (!valid) return by_name();

    for (const auto& run : key_runs) key_.push_back(run.count);
    std::size_t pairs = 0;
    for (const auto& run : row_runs) {
        if (pairs > max_described_pairs) return by_name();
        for_each_piece(mask, run, [&](const layouts::MaskSegment& segment, const Run& piece) {
            pairs += key_runs.size();
            if (pairs > max_described_pairs) return;
            // A row that sees no key at all counts differently in a tile's bounds from one that sees no key of this
            // block.
            const bool fully_masked =
                segment.at(piece.first) == layouts::RowKeys{} && segment.at(piece.last()) == layouts::RowKeys{};
            key_.insert(key_.end(), {-2, piece.count, fully_masked, std::ssize(segment.earlier)});
            if (fully_masked) return;
            for (const auto& key_run : key_runs) {
                describe_bound(key_, segment.begin, piece, key_run);
                describe_bound(key_, segment.end, piece, key_run);
                describe_bound(key_, {segment.sink, 0}, piece, key_run);
                for (const auto& range : segment.earlier) {
                    describe_bound(key_, range.begin, piece, key_run);
                    describe_bound(key_, range.end, piece, key_run);
                }
            }
        });
    }
    if (pairs > max_described_pairs) by_name();
}

TileModel::Known& TileModel::known(const Block& block, AttendPosition position) {
    describe(block);
    key_.insert(key_.end(), {block.rows.heads.count(), block.keys.heads.count(), 2 * position.begins + position.ends});
    return known_[{reinterpret_cast<const char*>(key_.data()), key_.size() * sizeof(key_.front())}];
}

double TileModel::computed_pairs(const Part& rows, const Part& keys) {
    const auto block = block_of(rows, keys);
    auto& found = known(block, {}).computed_pairs;
    if (found) return *found;
    double tiles = 0;
    for (const auto& [full, partial] : work_tiles_of(block).tiles) tiles += static_cast<double>(full + partial);
    const auto of_a_tile = [](std::int64_t most, std::int64_t all) { return static_cast<double>(std::min(most, all)); };
    found = tiles * of_a_tile(cost_.tile_rows, rows.tokens.size()) * of_a_tile(cost_.tile_keys, keys.tokens.size());
    return *found;
}

double TileModel::slowdown_without_sms(double sms, const Part& rows, const Part& keys, AttendPosition position) {
    const auto block = block_of(rows, keys);
    const auto [found, is_new] = known(block, position).slowdowns.try_emplace(sms, 1);
    if (!is_new) return found->second;
    const auto all = attend_launch(block, position, 0).seconds;
    if (all > 0) found->second = attend_launch(block, position, sms).seconds / all;
    return found->second;
}

TileModel::Time TileModel::attend(const Part& rows, const Part& keys, AttendPosition position) {
    const auto block = block_of(rows, keys);
    auto& found = known(block, position).time;
    if (found) return *found;
    const auto [seconds, longest, tiles] = attend_launch(block, position, 0);
    found = {.alone = seconds, .continued = tiles / machine_.sms, .longest_work_tile = longest};
    return *found;
}

TileModel::WorkTiles::Sizes TileModel::sizes_of(const Part& rows, const Part& keys) const {
    const auto& p = schedule_.problem();
    const auto row_heads = static_cast<double>(p.batch * rows.tokens.size() * rows.heads.count());
    const auto key_heads = static_cast<double>(p.batch * keys.tokens.size() * keys.heads.count());
    const auto bytes = static_cast<double>(layouts::bytes_of(p.dtype));
    return {row_heads * static_cast<double>(p.value_dim), row_heads * static_cast<double>(p.head_dim) * bytes,
            key_heads * static_cast<double>(p.head_dim + p.value_dim) * bytes};
}

TileModel::RowBytes TileModel::row_bytes(AttendPosition position) const {
    const auto kept = static_cast<double>(layouts::bytes_of(schedule_.accumulator()));
    const auto rounded = static_cast<double>(layouts::bytes_of(schedule_.problem().dtype));
    return {position.begins ? 0 : kept, kept + (position.ends ? rounded : 0)};
}

/// See terms::OverflowTail.
double TileModel::l2_miss_share(std::span<const WorkTiles> parts, AttendPosition position) const {
    if (cost_.work_tile != WorkTile::query_tile || machine_.cache_bytes == 0) return 0;
    const auto [read, written] = row_bytes(position);
    const bool in_place = !position.begins && !position.ends;
    double touched = 0;
    for (const auto& part : parts) {
        const auto busy = busy_share(part.tiles);
        touched += part.sizes.outputs * (in_place ? busy * written : read + written) + part.sizes.queries * busy +
                   part.sizes.keys;
    }
    return terms::OverflowTail::missed(touched, machine_.cache_bytes);
}

TileModel::WorkTiles TileModel::work_tiles_of(const Block& block) const {
    const auto& [rows, keys, row_runs, key_runs] = block;
    const auto kept = [&](auto& by_block, const Part& part, auto make) {
        using Tiles = typename std::remove_reference_t<decltype(by_block)>::value_type;
        if (!schedule_.is_whole(part)) return std::make_shared<const Tiles>(make());
        by_block.resize(static_cast<std::size_t>(schedule_.blocks()));
        auto& tiles = by_block[static_cast<std::size_t>(part.block)];
        if (tiles.empty()) tiles = make();
        return std::shared_ptr<const Tiles>(std::shared_ptr<void>(), &tiles);
    };
    const auto& mask = schedule_.mask();
    const auto hulls =
        kept(hulls_, rows, [&, runs = row_runs] { return layouts::row_hulls(mask, runs, cost_.tile_rows); });
    const auto columns =
        kept(key_tiles_, keys, [&, runs = key_runs] { return layouts::key_tiles(mask, runs, cost_.tile_keys); });
    const bool by_keys = cost_.work_tile == WorkTile::key_tile;
    WorkTiles work_tiles;
    work_tiles.copies = (by_keys ? keys : rows).heads.count() * schedule_.problem().batch;
    work_tiles.query_heads_in_turn = by_keys ? rows.heads.count() / std::max(1, keys.heads.count()) : 1;
    if (by_keys) {
        list_key_tiles(work_tiles, *hulls, *columns);
    } else {
        auto work = layouts::tile_work(*hulls, *columns);
        work_tiles.tiles = std::move(work.queries);
        work_tiles.sizes = sizes_of(rows, keys);
        work_tiles.sizes.keys *= busy_share(work.keys);
    }
    return work_tiles;
}

double TileModel::tile_seconds(const WorkTiles& work_tiles) const {
    double seconds = 0;
    for (const auto& tiles : work_tiles.tiles) seconds += terms::Tiles::of_tiles(cost_, tiles);
    return seconds * work_tiles.query_heads_in_turn * static_cast<double>(work_tiles.copies);
}

/// Work tiles that run at a time under `sharing` while `missing` SMs are missing.
std::int64_t TileModel::concurrent_work_tiles(const layouts::SmGroup& sharing, double missing) const {
    const auto all = machine_.sms;
    const auto left = static_cast<double>(sharing.at_a_time) * (all - missing) / all;
    return std::max(std::int64_t{1}, static_cast<std::int64_t>(left));
}

/// Time of one launch with the query work tiles of all `parts`, while `missing` SMs are missing. If they belong to one
/// block, `keys`, the kernel takes them longest first for some heads, then for the next heads.
TileModel::Launch TileModel::launch(std::span<const WorkTiles> parts, AttendPosition position, const Part* keys,
                                    double missing) const {
    // A launch that is neither the first nor the last of its rows leaves idle work tiles out of its work list.
    const bool visits_idle = position.begins || position.ends;
    const auto missed = l2_miss_share(parts, position);
    const auto [read, written] = row_bytes(position);
    Launch found;
    std::vector<WorkTileGroup> groups;
    std::int64_t count = 0;
    for (const auto& part : parts) {
        const auto traffic = position.begins ? 0 : traffic_seconds(part, missed * (read + written), machine_);
        for (std::size_t i = 0; i < part.tiles.size(); ++i) {
            const auto& tiles = part.tiles[i];
            const bool is_idle = tiles.full + tiles.partial == 0;
            if (!visits_idle && is_idle) continue;
            const auto visits = part.visits.empty() ? 1 : std::max(1, part.visits[i]);
            const auto seconds = work_tile_seconds(cost_, {.tiles = tiles,
                                                           .begins = position.begins,
                                                           .heads_in_turn = part.query_heads_in_turn,
                                                           .visits = visits});
            groups.push_back({seconds + (is_idle ? traffic : 0), part.copies});
            count += part.copies;
            found.longest_work_tile = std::max(found.longest_work_tile, groups.back().seconds);
        }
        found.tiles += tile_seconds(part);
    }
    std::ranges::stable_sort(groups, std::greater{}, &WorkTileGroup::seconds);
    // The order of heads is known only if the machine file gives the size of L2.
    if (keys && keys->heads.count() > 0 && machine_.cache_bytes > 0) {
        const auto& p = schedule_.problem();
        const auto tiles = static_cast<std::int64_t>(groups.size());
        const auto heads = parts.front().copies, kv_heads = keys->heads.count() * p.batch;
        const auto order =
            layouts::forward_order(tiles, kv_heads, heads / kv_heads,
                                   keys->tokens.size() * (p.head_dim + p.value_dim) * layouts::bytes_of(p.dtype));
        std::vector<WorkTileGroup> ordered;
        layouts::for_each_work_tile_run(order, tiles, heads, [&](const layouts::WorkTileRun& run) {
            ordered.push_back({groups[static_cast<std::size_t>(run.work_tile)].seconds, run.heads});
        });
        groups = std::move(ordered);
    }
    const layouts::SmGroup alone{1, static_cast<std::int64_t>(machine_.sms)};
    found.seconds = list_schedule(groups, concurrent_work_tiles(alone, missing)) +
                    terms::OverflowTail::of_launch(cost_, missed, read + written,
                                                   std::min(1.0, static_cast<double>(count) / machine_.sms));
    return found;
}

TileModel::Launch TileModel::attend_launch(const Block& block, AttendPosition position, double missing) const {
    auto work_tiles = work_tiles_of(block);
    if (cost_.work_tile == WorkTile::query_tile) return launch({&work_tiles, 1}, position, &block.keys, missing);
    return key_launch(std::make_shared<const WorkTiles>(std::move(work_tiles)), missing);
}

}  // namespace ringlab::sim
