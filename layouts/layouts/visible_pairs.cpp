#include "layouts/layouts/visible_pairs.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace ringlab::layouts {
namespace {

// Up to this many runs, a sum over all of them is faster than a search.
constexpr std::size_t few_runs = 4;

/// First i >= 0 with start + step*i >= limit, at most `count`.
std::int64_t first_reaching(std::int64_t start, std::int64_t step, std::int64_t limit, std::int64_t count) {
    if (start >= limit) return 0;
    if (step == 0 || start + step * (count - 1) < limit) return count;
    return std::min(count, (limit - start + step - 1) / step);
}

/// Sum of floor((a*i + b) / c) over 0 <= i < n, for a, b >= 0 and c > 0, by the Euclid-like reduction of Graham, Knuth
/// and Patashnik (Concrete Mathematics, 3.5).
std::int64_t floor_sum(std::int64_t n, std::int64_t a, std::int64_t b, std::int64_t c) {
    std::int64_t sum = 0;
    while (n > 0) {
        sum += n * (n - 1) / 2 * (a / c) + n * (b / c);
        a %= c;
        b %= c;
        const auto top = a * n + b;
        if (top < c) break;
        n = top / c;
        b = top % c;
        std::swap(a, c);
    }
    return sum;
}

/// Sum of run.below(start + step*i) over 0 <= i < count.
std::int64_t run_sum_below(const Run& run, std::int64_t start, std::int64_t step, std::int64_t count) {
    if (step == 0) return count * run.below(start);
    const auto offset = start - run.first + run.stride - 1;
    // Avoid divisions where all positions are below, or none: true of most pairs of shards in a large ring.
    if (offset >= run.stride * run.count) return count * run.count;
    if (offset + step * (count - 1) < run.stride) return 0;
    const auto begin = first_reaching(offset, step, 0, count);                     // below is 0 before it
    const auto end = first_reaching(offset, step, run.stride * run.count, count);  // and run.count from it on
    return floor_sum(end - begin, step, offset + step * begin, run.stride) + (count - end) * run.count;
}

/// Sum of keys.below(clamp(start + step*i, limits.begin, limits.end)) over 0 <= i < count.
std::int64_t sum_below_clamped(const KeyCounter& keys, std::int64_t start, std::int64_t step, std::int64_t count,
                               Interval limits) {
    if (limits.begin <= start && start + step * (count - 1) <= limits.end) return keys.sum_below(start, step, count);
    const auto at_low = first_reaching(start, step, limits.begin, count);
    const auto at_high = std::max(at_low, first_reaching(start, step, limits.end, count));
    std::int64_t sum = 0;
    if (at_low > 0) sum += at_low * keys.below(limits.begin);
    if (at_high > at_low) sum += keys.sum_below(start + step * at_low, step, at_high - at_low);
    if (count > at_high) sum += (count - at_high) * keys.below(limits.end);
    return sum;
}

/// Calls visit(segment, part of the run that lies in the segment) in order until a call returns false. Returns whether
/// all calls returned true.
template <class Visit>
bool for_each_piece(const Mask& mask, const Run& run, Visit visit) {
    auto segment = mask.segment_of(run.first);
    for (std::int64_t i = 0; i < run.count;) {
        const auto& rows = mask.segments()[segment].rows;
        const auto end = first_reaching(run.first, run.stride, rows.end, run.count);
        if (end > i && !visit(mask.segments()[segment], slice(run, i, end))) return false;
        i = std::max(i, end);
        // A long stride may jump over many short segments.
        if (i < run.count)
            segment = segment + 1 < mask.segments().size() && mask.segments()[segment + 1].rows.contains(run.at(i))
                          ? segment + 1
                          : mask.segment_of(run.at(i));
    }
    return true;
}

}  // namespace

KeyCounter::KeyCounter(std::span<const Run> runs) : runs_(runs.begin(), runs.end()) {
    for (const auto& run : runs_) {
        if (run.count == 0) continue;
        first_ = count_ == 0 ? run.first : std::min(first_, run.first);
        end_ = std::max(end_, run.last() + 1);
        count_ += run.count;
    }
    if (runs_.size() <= few_runs) return;
    // Many runs are stored as sorted stride-1 runs, merged where they touch, for binary search.
    std::vector<Run> pieces;
    for (const auto& run : runs_) {
        if (run.stride == 1)
            pieces.push_back(run);
        else
            for (std::int64_t i = 0; i < run.count; ++i) pieces.push_back({run.at(i), 1, 1});
    }
    std::sort(pieces.begin(), pieces.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
    runs_.clear();
    for (const auto& piece : pieces) append_run(runs_, piece);
    contiguous_ = true;
    std::int64_t count = 0, area = 0, at = 0;
    for (const auto& run : runs_) {
        area += count * (run.first - at);
        count_before_.push_back(count);
        area_before_.push_back(area);
        area += run.count * count + run.count * (run.count - 1) / 2;
        count += run.count;
        at = run.first + run.count;
    }
}

std::int64_t KeyCounter::below(std::int64_t x) const {
    if (!contiguous_) {
        std::int64_t sum = 0;
        for (const auto& run : runs_) sum += run.below(x);
        return sum;
    }
    const auto after = std::upper_bound(runs_.begin(), runs_.end(), x,
                                        [](std::int64_t position, const Run& run) { return position < run.first; });
    if (after == runs_.begin()) return 0;
    const auto& run = *std::prev(after);
    return count_before_[static_cast<std::size_t>(after - runs_.begin() - 1)] + std::min(x - run.first, run.count);
}

std::int64_t KeyCounter::area_below(std::int64_t x) const {
    const auto after = std::upper_bound(runs_.begin(), runs_.end(), x,
                                        [](std::int64_t position, const Run& run) { return position < run.first; });
    if (after == runs_.begin()) return 0;
    const auto& run = *std::prev(after);
    const auto i = static_cast<std::size_t>(after - runs_.begin() - 1);
    const auto inside = std::min(x - run.first, run.count), beyond = x - run.first - inside;
    return area_before_[i] + inside * count_before_[i] + inside * (inside - 1) / 2 +
           beyond * (count_before_[i] + run.count);
}

std::int64_t KeyCounter::sum_below(std::int64_t start, std::int64_t step, std::int64_t count) const {
    // All positions are below, or none: true of most pairs of shards, and of the begins of most rows.
    if (start + step * (count - 1) <= first_) return 0;
    if (start >= end_) return count * count_;
    if (step == 0) return count * below(start);
    std::int64_t sum = 0;
    if (!contiguous_) {
        for (const auto& run : runs_) sum += run_sum_below(run, start, step, count);
    } else if (step == 1) {
        sum = area_below(start + count) - area_below(start);
    } else {
        for (std::int64_t i = 0; i < count; ++i) sum += below(start + step * i);
    }
    return sum;
}

namespace {

/// Visible pairs of rows that lie in one segment.
std::int64_t pairs_in(const Mask& mask, const MaskSegment& segment, const Run& rows, const KeyCounter& keys) {
    const auto sum = [&](Bound bound, Interval limits) {
        return sum_below_clamped(keys, bound.at(rows.first), bound.slope * rows.stride, rows.count, limits);
    };
    // Mask guarantees that the rows of a segment all see something or all see nothing.
    const bool empty = segment.begin.at(rows.last()) >= segment.end.at(rows.last()) &&
                       segment.begin.at(rows.first) >= segment.end.at(rows.first);
    if (empty) return 0;
    std::int64_t pairs = 0;
    for (const auto& valid : mask.valid()) {
        pairs += sum(segment.end, valid) - sum(segment.begin, valid);
        for (const auto& range : segment.earlier) pairs += sum(range.end, valid) - sum(range.begin, valid);
        const Interval sink{valid.begin, std::min(valid.end, segment.sink)};
        if (sink.size() > 0) pairs += sum(segment.first_bound(), sink) - rows.count * keys.below(sink.begin);
    }
    return pairs;
}

}  // namespace

std::int64_t visible_pairs(const Mask& mask, std::span<const Run> queries, const KeyCounter& keys) {
    std::int64_t pairs = 0;
    for (const auto& run : queries)
        for_each_piece(mask, run, [&](const MaskSegment& segment, const Run& rows) {
            pairs += pairs_in(mask, segment, rows, keys);
            return true;
        });
    return pairs;
}

bool any_visible(const Mask& mask, std::span<const Run> queries, const KeyCounter& keys) {
    return !std::ranges::all_of(queries, [&](const Run& run) {
        return for_each_piece(mask, run, [&](const MaskSegment& segment, const Run& rows) {
            return pairs_in(mask, segment, rows, keys) == 0;
        });
    });
}

std::vector<Interval> merged(std::vector<Interval> intervals, std::int64_t gap) {
    std::erase_if(intervals, [](const Interval& i) { return i.size() == 0; });
    std::sort(intervals.begin(), intervals.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    std::vector<Interval> result;
    for (const auto& interval : intervals) {
        if (!result.empty() && interval.begin - result.back().end < gap)
            result.back().end = std::max(result.back().end, interval.end);
        else
            result.push_back(interval);
    }
    return result;
}

std::vector<Interval> seen_keys(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys,
                                std::int64_t gap) {
    std::vector<Interval> positions;
    for (const auto& run : queries)
        for_each_piece(mask, run, [&](const MaskSegment& segment, const Run& rows) {
            // Bounds are monotonic within a segment, so its first and last row have the extremes.
            const auto first = segment.at(rows.first), last = segment.at(rows.last());
            positions.push_back({std::min(first.begin, last.begin), std::max(first.end, last.end)});
            positions.push_back({0, std::max(first.sink, last.sink)});
            if (first == RowKeys{}) return true;
            for (const auto& range : segment.earlier)
                positions.push_back({range.begin.at(rows.first), range.end.at(rows.last())});
            return true;
        });
    positions = merged(std::move(positions), 1);
    std::vector<Interval> local;
    for (const auto& seen : positions)
        for (const auto& valid : mask.valid()) {
            const Interval both{std::max(seen.begin, valid.begin), std::min(seen.end, valid.end)};
            if (both.size() == 0) continue;
            std::int64_t before = 0;
            for (const auto& run : keys) {
                const auto begin = run.below(both.begin), end = run.below(both.end);
                if (begin < end) local.push_back({before + begin, before + end});
                before += run.count;
            }
        }
    return merged(std::move(local), std::max<std::int64_t>(1, gap));
}

std::vector<Interval> blind_rows(const Mask& mask, std::span<const Run> queries) {
    std::vector<Interval> blind;
    std::int64_t local = 0;
    for (const auto& run : queries)
        for_each_piece(mask, run, [&](const MaskSegment& segment, const Run& rows) {
            // All rows of a segment see something, or none does.
            if (segment.at(rows.first) == RowKeys{}) blind.push_back({local, local + rows.count});
            local += rows.count;
            return true;
        });
    return merged(std::move(blind), 1);
}

std::vector<Interval> unseen_keys(const Mask& mask, std::span<const Run> keys) {
    std::vector<Interval> unseen;
    std::int64_t from = 0;
    for (const auto& seen : seen_keys(mask, std::array{Run{0, 1, mask.tokens()}}, keys, 1)) {
        unseen.push_back({from, seen.begin});
        from = seen.end;
    }
    unseen.push_back({from, count_of(keys)});
    return merged(std::move(unseen), 1);
}

RowHull row_hull(const Mask& mask, std::span<const Run> queries, std::int64_t begin, std::int64_t end) {
    RowHull hull;
    for_each_part(queries, begin, end, [&](const Run& part) {
        for_each_piece(mask, part, [&](const MaskSegment& segment, const Run& rows) {
            // Bounds are monotonic within a segment, so its first and last row have the extremes.
            for (const auto& row : {segment.at(rows.first), segment.at(rows.last())}) {
                if (row == RowKeys{}) {
                    hull.min_end = 0;
                    continue;
                }
                hull.min_begin = std::min(hull.min_begin, row.begin);
                hull.max_begin = std::max(hull.max_begin, row.begin);
                hull.min_end = std::min(hull.min_end, row.end);
                hull.max_end = std::max(hull.max_end, row.end);
                hull.max_sink = std::max(hull.max_sink, row.sink);
            }
            if (segment.earlier.empty()) return true;
            // From the segment, not from single rows: a range that one row's sink covers may be separate in another
            // row.
            hull.min_earlier = std::min(hull.min_earlier, segment.earlier.front().begin.at(rows.first));
            hull.max_earlier = std::max(hull.max_earlier, segment.earlier.back().end.at(rows.last()));
            return true;
        });
    });
    return hull;
}

std::vector<KeyTile> key_tiles(const Mask& mask, std::span<const Run> keys, std::int64_t tile_keys) {
    const auto count = count_of(keys);
    std::vector<KeyTile> tiles;
    for (std::int64_t begin = 0; begin < count; begin += tile_keys) {
        KeyTile tile{begin, std::min(begin + tile_keys, count), std::numeric_limits<std::int64_t>::max(), 0, true};
        for_each_part(keys, tile.begin, tile.end, [&](const Run& part) {
            tile.first = std::min(tile.first, part.first);
            tile.last = std::max(tile.last, part.last());
        });
        // Padding between the tile's keys in global order, even of another rank, makes it count as not all valid; that
        // only costs time.
        tile.all_valid = std::any_of(mask.valid().begin(), mask.valid().end(), [&](const Interval& valid) {
            return valid.contains(tile.first) && valid.contains(tile.last);
        });
        tiles.push_back(tile);
    }
    return tiles;
}

TileKind classify(const RowHull& rows, const KeyTile& keys) {
    const bool meets_interval = keys.first < rows.max_end && keys.last >= rows.min_begin;
    const bool meets_earlier = keys.first < rows.max_earlier && keys.last >= rows.min_earlier;
    if (!meets_interval && !meets_earlier && keys.first >= rows.max_sink) return TileKind::empty;
    const bool covered = rows.max_begin <= keys.first && keys.last < rows.min_end;
    return covered && keys.all_valid ? TileKind::full : TileKind::partial;
}

std::vector<RowHull> row_hulls(const Mask& mask, std::span<const Run> queries, std::int64_t tile_rows) {
    const auto count = count_of(queries);
    std::vector<RowHull> hulls;
    for (std::int64_t begin = 0; begin < count; begin += tile_rows)
        hulls.push_back(row_hull(mask, queries, begin, std::min(begin + tile_rows, count)));
    return hulls;
}

TileWork tile_work(std::span<const RowHull> rows, std::span<const KeyTile> columns) {
    TileWork work{{}, std::vector<TileCounts>(columns.size())};
    work.queries.reserve(rows.size());
    for (const auto& hull : rows) {
        auto& row = work.queries.emplace_back();
        for (std::size_t column = 0; column < columns.size(); ++column) {
            const auto kind = classify(hull, columns[column]);
            for (auto* side : {&row, &work.keys[column]}) {
                side->full += kind == TileKind::full;
                side->partial += kind == TileKind::partial;
            }
        }
    }
    return work;
}

TileWork tile_work(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys, std::int64_t tile_rows,
                   std::int64_t tile_keys) {
    return tile_work(row_hulls(mask, queries, tile_rows), key_tiles(mask, keys, tile_keys));
}

}  // namespace ringlab::layouts
