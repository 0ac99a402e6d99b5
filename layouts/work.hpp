#pragma once

#include "layouts/layout.hpp"
#include "layouts/mask.hpp"

namespace ringlab::layouts {

/// How many positions of a fixed set of runs lie below a position: the key side of every pair count.
class KeyCounter {
public:
    explicit KeyCounter(std::span<const Run> runs);

    /// Positions of the set in [0, x).
    std::int64_t below(std::int64_t x) const;

    /// Sum of below(start + step*i) over 0 <= i < count, step >= 0: closed form, but for many scattered runs with step
    /// > 1.
    std::int64_t sum_below(std::int64_t start, std::int64_t step, std::int64_t count) const;

private:
    std::int64_t area_below(std::int64_t x) const;  // sum of below(y) over 0 <= y < x; stride-1 runs only

    std::vector<Run> runs_;
    std::int64_t first_ = 0, end_ = 0;        // all positions are in [first_, end_)
    std::int64_t count_ = 0;                  // of them
    bool contiguous_ = false;                 // all runs have stride 1, sorted, not touching
    std::vector<std::int64_t> count_before_;  // of contiguous_ runs: positions in earlier runs
    std::vector<std::int64_t> area_before_;   // area_below(runs_[i].first)
};

/// Visible (query, key) pairs of one head between the rows at `queries` and the keys counted by `keys`. Exact; closed
/// form in the number of runs, mask segments and valid intervals (never rows x keys).
std::int64_t visible_pairs(const Mask& mask, std::span<const Run> queries, const KeyCounter& keys);

/// Whether there are any: found at the first, where there are.
bool any_visible(const Mask& mask, std::span<const Run> queries, const KeyCounter& keys);

/// Which keys some rows see: as ranges of the keys' local order, sorted, ranges with fewer than `gap` keys between them
/// put together. Where rows of a narrow window lie far apart, keys between what two of them see may be among them.
std::vector<Interval> seen_keys(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys,
                                std::int64_t gap);

/// What a tile of rows x keys asks of a kernel.
enum class TileKind { empty, partial, full };

/// What the rows of a query tile see, summed up: enough to classify a key tile against all of them at once.
struct RowHull {
    std::int64_t min_begin = std::numeric_limits<std::int64_t>::max();  ///< over rows that see anything
    std::int64_t max_begin = 0;
    std::int64_t min_end = std::numeric_limits<std::int64_t>::max();  ///< 0 if some row sees nothing
    std::int64_t max_end = 0;
    std::int64_t max_sink = 0;
    std::int64_t min_earlier = std::numeric_limits<std::int64_t>::max();  ///< of RowKeys::earlier, over all rows
    std::int64_t max_earlier = 0;
};

/// Those of all tiles of `tile_rows` rows (the last may be shorter).
std::vector<RowHull> row_hulls(const Mask& mask, std::span<const Run> queries, std::int64_t tile_rows);

/// Keys [begin, end) of a shard in local order; first and last are the smallest and largest global position among them.
struct KeyTile {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t first = 0;
    std::int64_t last = 0;
    bool all_valid = true;
};

/// The hull of the rows [begin, end), in local order, of a shard.
RowHull row_hull(const Mask& mask, std::span<const Run> queries, std::int64_t begin, std::int64_t end);

/// The shard's keys cut into tiles of `tile_keys` in local order (the last may be shorter).
std::vector<KeyTile> key_tiles(const Mask& mask, std::span<const Run> keys, std::int64_t tile_keys);

/// Full: every row sees every key, by its interval alone. Empty: no row sees any. A tile whose rows' intervals leave a
/// gap over it (rows far apart under a narrow window) may be called partial though it is empty: that costs time, never
/// correctness.
TileKind classify(const RowHull& rows, const KeyTile& keys);

/// Tiles of the other side that a query tile, or a key tile, has to work on.
struct TileRow {
    std::int64_t full = 0;
    std::int64_t partial = 0;
    friend constexpr bool operator==(const TileRow&, const TileRow&) = default;
};

/// What one head of an attend costs a tiled kernel: an entry per tile of query rows, and one per tile of keys, both in
/// local order.
struct TileWork {
    std::vector<TileRow> queries, keys;
};
TileWork tile_work(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys, std::int64_t tile_rows,
                   std::int64_t tile_keys);

/// From what depends on the rows alone and on the keys alone, for whoever meets them again.
TileWork tile_work(std::span<const RowHull> rows, std::span<const KeyTile> columns);

/// What a launch has to do whose items are tiles of keys: those with anything to do, of all heads and batch elements,
/// and their tiles of rows.
struct ItemLoad {
    std::int64_t items = 0;
    std::int64_t entries = 0;
    std::int64_t longest = 0;          ///< entries of one item
    std::int64_t steps_per_entry = 1;  ///< query heads of a kv head
};

/// Several processors that share an item, and how many such groups find room at a time.
struct Sharing {
    std::int64_t processors = 1;
    std::int64_t at_a_time = 1;
};

/// The rule by which kernels choose, and models know that they do: one of `groups`, or each of `processors` for itself.
Sharing choose_sharing(const ItemLoad& load, std::int64_t processors, std::span<const Sharing> groups);

}  // namespace ringlab::layouts
