#include "gpu/kernels/work_list.hpp"

#include "gpu/device/cuda_check.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/layouts/launch_order.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace ringlab::gpu {
namespace {

using layouts::KeyTile;
using layouts::Mask;
using layouts::RowHull;
using layouts::Run;
using layouts::TileKind;

// A position in no row's interval.
constexpr std::int32_t unseen = std::numeric_limits<std::int32_t>::max();

// Arrays with an element per row or key have this many more at their end, at least a tile's side, so that kernels need
// no bounds check.
constexpr std::int64_t padding = 256;

void require_small_enough(const Mask& mask) {
    require(mask.tokens() < unseen, "mask {} over {} tokens: the kernels hold positions in 32 bits, so fewer than {}",
            mask.name(), mask.tokens(), unseen);
}

/// The valid interval that has the key; empty if the key is not valid.
layouts::Interval valid_keys_around(const Mask& mask, std::int64_t key) {
    const auto after = std::ranges::upper_bound(mask.valid(), key, {}, &layouts::Interval::begin);
    return after != mask.valid().begin() && std::prev(after)->contains(key) ? *std::prev(after) : layouts::Interval{};
}

/// All keys that rows of a tile may see lie in this interval.
layouts::Interval reach(const RowHull& rows) {
    return {std::min({rows.min_begin, rows.min_earlier, rows.max_sink > 0 ? std::int64_t{0} : rows.min_begin}),
            std::max({rows.max_end, rows.max_earlier, rows.max_sink})};
}
layouts::Interval reach(const KeyTile& keys) { return {keys.first, keys.last + 1}; }

/// Finds among tiles of one side those that may have visible pairs with a tile of the other side. So a block of many
/// short documents does not take time for each pair of tiles.
class Candidates {
public:
    template <class Tile>
    explicit Candidates(const std::vector<Tile>& tiles) {
        for (const auto& tile : tiles) {
            auto next = reach(tile);
            // Rows that see nothing may stand anywhere.
            if (next.size() == 0 && !reaches_.empty()) next = reaches_.back();
            if (!reaches_.empty()) ascend_ &= reaches_.back().begin <= next.begin && reaches_.back().end <= next.end;
            reaches_.push_back(next);
        }
    }

    /// Tiles [first, second).
    std::pair<std::size_t, std::size_t> of(const layouts::Interval& other) const {
        if (!ascend_) return {0, reaches_.size()};
        const auto begin = std::ranges::upper_bound(reaches_, other.begin, {}, &layouts::Interval::end);
        const auto end = std::ranges::lower_bound(reaches_, other.end, {}, &layouts::Interval::begin);
        const auto place = [&](auto found) { return static_cast<std::size_t>(found - reaches_.begin()); };
        return {place(begin), std::max(place(begin), place(end))};
    }

private:
    std::vector<layouts::Interval> reaches_;
    bool ascend_ = true;
};

/// layouts::classify(), except that a key tile narrower than `tile_keys` counts as partial, because its last columns
/// are not keys.
TileKind classify(const RowHull& rows, const KeyTile& keys, std::int64_t tile_keys) {
    const auto kind = layouts::classify(rows, keys);
    return kind == TileKind::full && keys.end - keys.begin < tile_keys ? TileKind::partial : kind;
}

WorkListOptions resolved(WorkListOptions options) {
    options.family = &resolve(options.family, options.head_dim, options.value_dim);
    return options;
}

/// Points `item` at the entries of `before`, if they are the same.
bool share_entries(std::array<std::int32_t, 4>& item, const std::array<std::int32_t, 4>& before,
                   std::span<const std::int32_t> entries) {
    const auto of = [&](const auto& which) {
        return entries.subspan(static_cast<std::size_t>(which[1]), static_cast<std::size_t>(which[2] - which[1]));
    };
    if (!std::ranges::equal(of(item), of(before))) return false;
    std::copy(before.begin() + 1, before.end(), item.begin() + 1);
    return true;
}

}  // namespace

std::int64_t count_tokens(std::span<const Run> runs) {
    std::int64_t tokens = 0;
    for (const auto& run : runs) tokens += run.count;
    return tokens;
}

RowBounds::RowBounds(const Mask& mask, std::span<const Run> queries, DeviceMemory& memory)
    : runs_(queries.begin(), queries.end()), tokens_(count_tokens(queries)), seeing_tokens_(tokens_) {
    require_small_enough(mask);
    if (const auto blind = layouts::blind_rows(mask, queries); !blind.empty() && blind.back().end == tokens_)
        seeing_tokens_ = blind.back().begin;
    std::vector<std::array<std::int32_t, 4>> bounds(static_cast<std::size_t>(tokens_ + padding));
    auto next = bounds.begin();
    const auto* segment = &mask.segments().front();
    for (const auto& run : runs_)
        for (std::int64_t i = 0; i < run.count; ++i) {
            if (!segment->rows.contains(run.at(i))) segment = &mask.segments()[mask.segment_of(run.at(i))];
            const auto row = segment->at(run.at(i));
            if (!row.earlier.empty())
                fail(
                    "mask {}: row {} sees keys {} to {} and {} to {}, and none between; kernels of GPUs know one "
                    "interval of keys and the first keys: compute on CPUs, or leave out one of the joined masks",
                    mask.name(), run.at(i), row.earlier.back().begin, row.earlier.back().end - 1, row.begin,
                    row.end - 1);
            *next++ = {static_cast<std::int32_t>(row.begin), static_cast<std::int32_t>(row.end),
                       static_cast<std::int32_t>(row.sink), static_cast<std::int32_t>(run.at(i))};
        }
    // Rows that do not exist see nothing. Their positions go on, so that dropout is drawn for whole patches.
    for (; next != bounds.begin() && next != bounds.end(); ++next)
        (*next)[3] = std::min((*std::prev(next))[3], unseen - 1) + 1;
    device_ = uploaded(bounds, memory);
}

std::vector<std::int32_t> key_positions(const Mask& mask, std::span<const Run> keys, std::int64_t count) {
    require_small_enough(mask);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(count), unseen);
    auto next = positions.begin();
    layouts::Interval valid;  // the one that was found last
    for (const auto& run : keys)
        for (std::int64_t i = 0; i < run.count; ++i) {
            const auto key = run.at(i);
            if (!valid.contains(key)) valid = valid_keys_around(mask, key);
            *next++ = valid.contains(key) ? static_cast<std::int32_t>(key) : unseen;
        }
    return positions;
}

KeyPositions::KeyPositions(const Mask& mask, std::span<const Run> keys, DeviceMemory& memory)
    : runs_(keys.begin(), keys.end()),
      tokens_(count_tokens(keys)),
      device_(uploaded(key_positions(mask, keys, tokens_ + padding), memory)) {}

Tiles find_tiles(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys, TileShape shape,
                 Major major, EqualEntries equal, RowsOfTile compared) {
    const auto rows = layouts::row_hulls(mask, queries, shape.rows);
    const auto columns = layouts::key_tiles(mask, keys, shape.keys);
    const auto apart = compared == RowsOfTile::apart ? layouts::row_hulls(mask, queries, 1) : std::vector<RowHull>();
    const auto kind_of = [&](std::size_t row, std::size_t column) {
        if (apart.empty()) return classify(rows[row], columns[column], shape.keys);
        const auto first = row * static_cast<std::size_t>(shape.rows);
        const auto end = std::min(first + static_cast<std::size_t>(shape.rows), apart.size());
        const auto kind = classify(apart[first], columns[column], shape.keys);
        for (auto i = first + 1; i < end; ++i)
            if (classify(apart[i], columns[column], shape.keys) != kind) return TileKind::partial;
        return kind;
    };
    const bool by_query = major == Major::queries;
    const auto own = by_query ? rows.size() : columns.size();
    const auto other = by_query ? columns.size() : rows.size();
    const auto candidates = by_query ? Candidates(columns) : Candidates(rows);

    Tiles tiles;
    tiles.other_side = static_cast<std::int64_t>(other);
    auto& entries = tiles.entries;
    for (std::size_t i = 0; i < own; ++i) {
        const auto begin = entries.size();
        const auto [first, end] = candidates.of(by_query ? reach(rows[i]) : reach(columns[i]));
        for (auto j = first; j < end; ++j) {
            const auto kind = by_query ? kind_of(i, j) : kind_of(j, i);
            if (kind == TileKind::empty) continue;
            const bool is_partial = kind == TileKind::partial;
            (is_partial ? tiles.partial : tiles.full) += 1;
            entries.push_back(static_cast<std::int32_t>(2 * j + is_partial));
        }
        require(entries.size() < static_cast<std::size_t>(unseen),
                "a work list of more than {} tile pairs: use fewer tokens per rank", unseen);
        auto partial_end = entries.begin() + static_cast<std::ptrdiff_t>(begin);
        if (by_query)
            partial_end =
                std::stable_partition(partial_end, entries.end(), [](std::int32_t entry) { return entry % 2 != 0; });
        std::array<std::int32_t, 4> item{static_cast<std::int32_t>(i), static_cast<std::int32_t>(begin),
                                         static_cast<std::int32_t>(entries.size()),
                                         static_cast<std::int32_t>(partial_end - entries.begin())};
        if (equal == EqualEntries::shared && !tiles.items.empty() && share_entries(item, tiles.items.back(), entries))
            entries.resize(begin);
        tiles.items.push_back(item);
    }
    return tiles;
}

void longest_first(std::span<std::array<std::int32_t, 4>> items) {
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return a[2] - a[1] > b[2] - b[1]; });
}

namespace {

std::vector<layouts::WorkTileReach> reaches_of(std::span<const std::array<std::int32_t, 4>> items,
                                               std::span<const std::int32_t> entries) {
    std::vector<layouts::WorkTileReach> reaches;
    for (const auto& [tile, begin, end, partial_end] : items)
        reaches.push_back({end - begin, entries[static_cast<std::size_t>(end) - 1] / 2});
    return reaches;
}

}  // namespace

std::int64_t group_by_last_entry(std::span<std::array<std::int32_t, 4>> items, std::span<const std::int32_t> entries) {
    const auto groups = layouts::row_groups_of(reaches_of(items, entries));
    const std::vector longest_first(items.begin(), items.end());
    for (std::size_t i = 0; i < items.size(); ++i) items[i] = longest_first[groups.order[i]];
    return groups.count;
}

bool fall_linearly(std::span<const std::array<std::int32_t, 4>> items, std::span<const std::int32_t> entries) {
    return layouts::fall_linearly(reaches_of(items, entries));
}

TileList::TileList(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys, TileShape shape,
                   Major major, bool with_semaphores, bool grouped, RowsOfTile compared, DeviceMemory& memory) {
    auto [items, entries, full, partial, other] = find_tiles(
        mask, queries, keys, shape, major, with_semaphores ? EqualEntries::apart : EqualEntries::shared, compared);
    full_ = full;
    partial_ = partial;
    longest_first(items);
    items_ = static_cast<std::int64_t>(items.size());
    if (!items.empty()) longest_ = items.front()[2] - items.front()[1];
    busy_items_ = std::count_if(items.begin(), items.end(), [](const auto& item) { return item[2] > item[1]; });
    const auto busy = std::span(items).first(static_cast<std::size_t>(busy_items_));
    falls_linearly_ = gpu::fall_linearly(busy, entries);
    if (grouped && !falls_linearly_) row_groups_ = static_cast<std::int32_t>(group_by_last_entry(busy, entries));
    items_device_ = uploaded(items, memory);
    entries_device_ = uploaded(entries, memory);
    if (!with_semaphores) return;
    std::vector<std::int32_t> values(entries.size()), taken(static_cast<std::size_t>(other));
    for (const auto& item : items)
        for (auto e = item[1]; e < item[2]; ++e)
            values[static_cast<std::size_t>(e)] =
                taken[static_cast<std::size_t>(entries[static_cast<std::size_t>(e)] / 2)]++;
    semaphore_values_ = uploaded(values, memory);
}

std::int64_t TileList::device_bytes() const {
    std::size_t bytes = 0;
    for (const auto* buffer : {&items_device_, &entries_device_, &semaphore_values_}) bytes += buffer->bytes();
    return static_cast<std::int64_t>(bytes);
}

namespace {

double rows_per_key(const Mask& mask, const RowBounds& rows, const KeyPositions& keys) {
    const auto pairs = layouts::visible_pairs(mask, rows.runs(), layouts::KeyCounter(keys.runs()));
    std::int64_t seen = 0;
    for (const auto& range : layouts::seen_keys(mask, rows.runs(), keys.runs(), 1)) seen += range.size();
    return static_cast<double>(pairs) / static_cast<double>(std::max<std::int64_t>(1, seen));
}

}  // namespace

WorkList::WorkList(const Mask& mask, std::shared_ptr<const RowBounds> rows, std::shared_ptr<const KeyPositions> keys,
                   const WorkListOptions& options)
    : WorkList(mask, rows, keys, resolved(options),
               resolved(options).family->plan(options, {rows->tokens(), rows_per_key(mask, *rows, *keys)})) {}

WorkList::WorkList(const Mask& mask, std::shared_ptr<const RowBounds> rows, std::shared_ptr<const KeyPositions> keys,
                   const WorkListOptions& options, const WorkListPlan& plan)
    : rows_(std::move(rows)),
      keys_(std::move(keys)),
      options_(options),
      tile_tokens_(plan.tile.rows),
      splits_kv_(plan.splits_kv),
      tiles_(mask, rows_->runs(), keys_->runs(), plan.tile,
             options.pass == layouts::Pass::forward ? Major::queries : Major::keys, plan.with_semaphores, plan.grouped,
             plan.splits_kv ? RowsOfTile::apart : RowsOfTile::together, *options.memory),
      counter_count_(plan.counters) {
    if (plan.query_tile)
        query_tiles_ = std::make_unique<TileList>(mask, rows_->runs(), keys_->runs(), *plan.query_tile, Major::queries,
                                                  false, false, RowsOfTile::together, *options.memory);
    if (counter_count_ > 0) counters_ = uploaded(std::vector<std::uint32_t>(counter_count_), *options.memory);
}

std::uint32_t* WorkList::next_counter() const {
    require(counter_count_ > 0, "kernels {} asked for no counters", family().name());
    return counters_.as<std::uint32_t>() + launches_.fetch_add(1, std::memory_order_relaxed) % counter_count_;
}

}  // namespace ringlab::gpu
