#pragma once

#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {

/// Counts how many positions of a fixed set of runs lie below a given position. Visible pairs are counted with it: the
/// runs are those of the keys.
class KeyCounter {
public:
    explicit KeyCounter(std::span<const Run> runs);

    /// Positions of the set in [0, x).
    std::int64_t below(std::int64_t x) const;

    /// Sum of below(start + step*i) over 0 <= i < count, step >= 0. In closed form, except for many runs with step
    /// above 1, where it takes `count` searches.
    std::int64_t sum_below(std::int64_t start, std::int64_t step, std::int64_t count) const;

private:
    std::int64_t area_below(std::int64_t x) const;  // sum of below(y) over 0 <= y < x; stride-1 runs only

    std::vector<Run> runs_;
    std::int64_t first_ = 0, end_ = 0;        // all positions are in [first_, end_)
    std::int64_t count_ = 0;                  // number of positions
    bool contiguous_ = false;                 // all runs have stride 1, are sorted and do not touch
    std::vector<std::int64_t> count_before_;  // of contiguous_ runs: positions in earlier runs
    std::vector<std::int64_t> area_before_;   // area_below(runs_[i].first)
};

/// Number of visible (query, key) pairs of one head between the rows at `queries` and the keys counted by `keys`.
/// Exact. The time depends on the number of runs, mask segments and valid intervals, never on rows x keys.
std::int64_t visible_pairs(const Mask& mask, std::span<const Run> queries, const KeyCounter& keys);

/// Whether there is at least one visible pair. Stops at the first one found.
bool any_visible(const Mask& mask, std::span<const Run> queries, const KeyCounter& keys);

/// The intervals sorted, without empty ones, and merged where fewer than `gap` positions lie between them.
std::vector<Interval> merged(std::vector<Interval> intervals, std::int64_t gap);

/// The keys that at least one of the rows sees, as sorted ranges in the local order of `keys`. Ranges with fewer than
/// `gap` keys between them are merged. Under a narrow window, where rows lie far apart, keys between the windows of two
/// rows may be included.
std::vector<Interval> seen_keys(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys,
                                std::int64_t gap);

/// The rows that see nothing, and the keys that no row sees, as sorted ranges in the local order of a shard. Padding is
/// among them.
std::vector<Interval> blind_rows(const Mask& mask, std::span<const Run> queries);
std::vector<Interval> unseen_keys(const Mask& mask, std::span<const Run> keys);

/// What a kernel has to do for a tile of rows x keys: nothing, test each element against the mask, or compute all of
/// it.
enum class TileKind { empty, partial, full };

/// Bounds of what the rows of a query tile see, enough to classify a key tile against all of these rows at once.
struct RowHull {
    // Extremes of RowKeys::begin, end and sink over the rows that see anything.
    std::int64_t min_begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t max_begin = 0;
    std::int64_t min_end = std::numeric_limits<std::int64_t>::max();  ///< 0 if a row of the tile sees nothing
    std::int64_t max_end = 0;
    std::int64_t max_sink = 0;
    // Smallest begin and largest end of RowKeys::earlier over all rows.
    std::int64_t min_earlier = std::numeric_limits<std::int64_t>::max();
    std::int64_t max_earlier = 0;
};

/// The hulls of all tiles of `tile_rows` rows in local order (the last tile may be shorter).
std::vector<RowHull> row_hulls(const Mask& mask, std::span<const Run> queries, std::int64_t tile_rows);

/// Keys [begin, end) of a shard in local order; first and last are the smallest and largest global position among them.
struct KeyTile {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t first = 0;
    std::int64_t last = 0;
    bool all_valid = true;  ///< no key from `first` to `last` is padding
};

/// The hull of the rows [begin, end), in local order, of a shard.
RowHull row_hull(const Mask& mask, std::span<const Run> queries, std::int64_t begin, std::int64_t end);

/// The shard's keys cut into tiles of `tile_keys` in local order (the last may be shorter).
std::vector<KeyTile> key_tiles(const Mask& mask, std::span<const Run> keys, std::int64_t tile_keys);

/// Full: every row sees every key of the tile in its interval [begin, end). Empty: no row sees any. An empty tile
/// between the intervals of rows that lie far apart (under a narrow window) may be classified as partial; that costs
/// time, never correctness.
TileKind classify(const RowHull& rows, const KeyTile& keys);

/// Number of key tiles that a query tile has to process, or of query tiles that a key tile has to process, by kind.
struct TileCounts {
    std::int64_t full = 0;
    std::int64_t partial = 0;
    friend constexpr bool operator==(const TileCounts&, const TileCounts&) = default;
};

/// Tiles that a tiled kernel has to process for one head of an attend: `queries` has an element per query tile, `keys`
/// one per key tile, both in local order.
struct TileWork {
    std::vector<TileCounts> queries, keys;
};
TileWork tile_work(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys, std::int64_t tile_rows,
                   std::int64_t tile_keys);

/// The same from hulls and key tiles, which a caller may use again for other pairs of blocks.
TileWork tile_work(std::span<const RowHull> rows, std::span<const KeyTile> columns);

}  // namespace ringlab::layouts
