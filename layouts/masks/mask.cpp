#include "layouts/masks/mask.hpp"

#include "layouts/basics/typed_names.hpp"

#include <set>

namespace ringlab::layouts {
namespace {

/// Adds to `cuts` the rows in `rows` at which two bounds of different slope swap order, so that between two cuts one of
/// the bounds is the larger throughout.
void add_crossing(Bound a, Bound b, Interval rows, std::set<std::int64_t>& cuts) {
    if (a.slope == b.slope) return;
    // a.offset + a.slope*q == b.offset + b.slope*q at q = crossing; slopes are 0 and 1, so it is a whole number.
    const auto crossing = (b.offset - a.offset) / (a.slope - b.slope);
    for (auto row : {crossing, crossing + 1})
        if (rows.begin < row && row < rows.end) cuts.insert(row);
}

Bound larger(Bound a, Bound b, std::int64_t row) { return a.at(row) >= b.at(row) ? a : b; }
Bound smaller(Bound a, Bound b, std::int64_t row) { return a.at(row) <= b.at(row) ? a : b; }

bool continues(const MaskSegment& a, const MaskSegment& b) {
    return a.begin == b.begin && a.end == b.end && a.sink == b.sink && a.earlier == b.earlier &&
           a.rows.end == b.rows.begin;
}

/// All ranges that a segment's rows see, without the sink.
std::vector<KeyRange> ranges_of(const MaskSegment& segment) {
    auto ranges = segment.earlier;
    ranges.push_back({segment.begin, segment.end});
    return ranges;
}

/// A segment whose rows see these sorted ranges, the last as [begin, end); without ranges the rows see nothing.
MaskSegment segment_of_ranges(Interval rows, std::vector<KeyRange> ranges, std::int64_t sink) {
    if (ranges.empty()) return {rows, {}, {}};
    const auto last = ranges.back();
    ranges.pop_back();
    return {rows, last.begin, last.end, sink, std::move(ranges)};
}

/// Sorts ranges whose bounds do not swap order from `row` on, drops empty ones, and merges those that overlap or touch.
std::vector<KeyRange> sorted_and_merged(std::vector<KeyRange> ranges, std::int64_t row) {
    std::erase_if(ranges, [&](const KeyRange& range) { return range.at(row).size() == 0; });
    std::ranges::sort(ranges, {}, [&](const KeyRange& range) { return range.begin.at(row); });
    std::vector<KeyRange> apart;
    for (const auto& range : ranges) {
        if (!apart.empty() && range.begin.at(row) <= apart.back().end.at(row))
            apart.back().end = larger(apart.back().end, range.end, row);
        else
            apart.push_back(range);
    }
    return apart;
}

/// Appends the segment cut into pieces on which the bounds lie in [0, tokens] and no two of them swap order.
void append_clamped(const MaskSegment& segment, std::int64_t tokens, std::vector<MaskSegment>& out) {
    const Bound zero{0, 0}, all{tokens, 0};
    std::vector<Bound> bounds{zero, all};
    const auto ranges = ranges_of(segment);
    std::set<std::int64_t> cuts{segment.rows.begin, segment.rows.end};
    for (const auto& range : ranges)
        for (const auto bound : {range.begin, range.end}) {
            for (const auto other : bounds) add_crossing(bound, other, segment.rows, cuts);
            bounds.push_back(bound);
        }

    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
        const Interval rows{*cut, *std::next(cut)};
        const auto clamp = [&](Bound b) { return smaller(larger(b, zero, rows.begin), all, rows.begin); };
        auto seen = ranges;
        for (auto& range : seen) range = {clamp(range.begin), clamp(range.end)};
        seen = sorted_and_merged(std::move(seen), rows.begin);
        auto piece = segment_of_ranges(rows, std::move(seen), std::max<std::int64_t>(segment.sink, 0));
        if (!out.empty() && continues(out.back(), piece))
            out.back().rows.end = rows.end;
        else
            out.push_back(std::move(piece));
    }
}

}  // namespace

std::int64_t RowKeys::count() const {
    std::int64_t keys = end - begin + sink;
    for (const auto& interval : earlier) keys += interval.size();
    return keys;
}

RowKeys MaskSegment::at(std::int64_t row) const {
    const auto first = begin.at(row), last = end.at(row);
    if (first >= last) return {};
    RowKeys keys{first, last, std::min(sink, first_bound().at(row))};
    for (const auto& range : earlier) {
        const auto interval = range.at(row);
        if (interval.begin <= keys.sink)
            keys.sink = interval.end;
        else
            keys.earlier.push_back(interval);
    }
    return keys;
}

Mask::Mask(std::string name, std::int64_t tokens, const std::vector<MaskSegment>& segments, std::vector<Interval> valid)
    : name_(std::move(name)), tokens_(tokens), valid_(std::move(valid)) {
    std::int64_t next_row = 0;
    for (const auto& segment : segments) {
        require(segment.rows.begin == next_row && segment.rows.size() > 0,
                "mask {}: a segment starts at row {}, the one before it ends at {}; segments must follow each other",
                name_, segment.rows.begin, next_row);
        append_clamped(segment, tokens_, segments_);
        next_row = segment.rows.end;
    }
    require(next_row == tokens_, "mask {} covers rows up to {} of {}", name_, next_row, tokens_);
    std::int64_t previous_end = 0;
    for (const auto& interval : valid_) {
        require(interval.begin >= previous_end && interval.size() > 0 && interval.end <= tokens_,
                "mask {}: valid keys [{}, {}) are empty, out of order or past the last token {}", name_, interval.begin,
                interval.end, tokens_);
        previous_end = interval.end;
    }
}

Mask::Mask(std::string name, std::int64_t tokens, const std::vector<MaskSegment>& segments)
    : Mask(std::move(name), tokens, segments, {{0, tokens}}) {}

bool Mask::key_is_valid(std::int64_t key) const {
    const auto after = std::upper_bound(valid_.begin(), valid_.end(), key,
                                        [](std::int64_t k, const Interval& interval) { return k < interval.begin; });
    return after != valid_.begin() && std::prev(after)->contains(key);
}

std::size_t Mask::segment_of(std::int64_t row) const {
    const auto after =
        std::upper_bound(segments_.begin(), segments_.end(), row,
                         [](std::int64_t r, const MaskSegment& segment) { return r < segment.rows.begin; });
    return static_cast<std::size_t>(std::prev(after) - segments_.begin());
}

Mask intersect(const Mask& a, const Mask& b) {
    require(a.tokens() == b.tokens(), "cannot intersect mask {} over {} tokens with {} over {}", a.name(), a.tokens(),
            b.name(), b.tokens());
    std::vector<MaskSegment> segments;
    for (auto i = a.segments().begin(), j = b.segments().begin(); i != a.segments().end() && j != b.segments().end();) {
        const Interval rows{std::max(i->rows.begin, j->rows.begin), std::min(i->rows.end, j->rows.end)};
        const auto of_a = ranges_of(*i), of_b = ranges_of(*j);
        std::set<std::int64_t> cuts{rows.begin, rows.end};
        for (const auto& x : of_a)
            for (const auto& y : of_b) {
                add_crossing(x.begin, y.begin, rows, cuts);
                add_crossing(x.end, y.end, rows, cuts);
            }
        for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
            // The intersection of each range of `a` with each of `b`; Mask drops the empty ones.
            std::vector<KeyRange> both;
            for (const auto& x : of_a)
                for (const auto& y : of_b)
                    both.push_back({larger(x.begin, y.begin, *cut), smaller(x.end, y.end, *cut)});
            segments.push_back(segment_of_ranges({*cut, *std::next(cut)}, std::move(both), std::max(i->sink, j->sink)));
        }
        const bool a_ends = i->rows.end == rows.end, b_ends = j->rows.end == rows.end;
        if (a_ends) ++i;
        if (b_ends) ++j;
    }
    std::vector<Interval> valid;
    for (const auto& x : a.valid())
        for (const auto& y : b.valid()) {
            const Interval both{std::max(x.begin, y.begin), std::min(x.end, y.end)};
            if (both.size() > 0) valid.push_back(both);
        }
    return {a.name() + "+" + b.name(), a.tokens(), segments, std::move(valid)};
}

Mask pad(const Mask& mask, std::int64_t tokens) {
    require(tokens >= mask.tokens(), "cannot pad a mask over {} tokens to {}", mask.tokens(), tokens);
    auto segments = mask.segments();
    if (tokens > mask.tokens()) segments.push_back({{mask.tokens(), tokens}, {}, {}, 0});
    return {mask.name(), tokens, segments, mask.valid()};
}

std::vector<Interval> last_rows(const Mask& mask, std::int64_t count) {
    require(count > 0, "{} query rows of every sequence; it must be at least 1", count);
    std::vector<std::int64_t> ends;          // of sequences, the last one first
    std::int64_t first_key = mask.tokens();  // smallest RowKeys::begin of all later rows
    std::int64_t end_before = 0;             // largest RowKeys::end_before() of all later rows
    for (auto segment = mask.segments().rbegin(); segment != mask.segments().rend(); ++segment) {
        const auto end = segment->rows.end;
        if (mask.row(end - 1) != RowKeys{} && first_key >= end && end_before < end) ends.push_back(end);
        for (const auto row : {segment->rows.begin, end - 1})
            if (const auto seen = mask.row(row); seen != RowKeys{}) {
                first_key = std::min(first_key, seen.begin);
                end_before = std::max(end_before, seen.end_before());
            }
    }
    require(!ends.empty(), "mask {} lets no row see anything; there are no sequences to take last rows of",
            mask.name());
    std::vector<Interval> rows;
    for (auto end = ends.rbegin(); end != ends.rend(); ++end)
        rows.push_back({std::max(rows.empty() ? 0 : rows.back().end, *end - count), *end});
    return rows;
}

RowTable row_table(const Mask& mask) {
    RowTable table;
    std::vector<std::vector<Interval>> earlier;
    for (std::int64_t row = 0; row < mask.tokens(); ++row) {
        auto keys = mask.row(row);
        table.begin.push_back(keys.begin);
        table.end.push_back(keys.end);
        table.sink.push_back(keys.sink);
        table.valid.push_back(mask.key_is_valid(row));
        table.ranges = std::max(table.ranges, std::ssize(keys.earlier));
        earlier.push_back(std::move(keys.earlier));
    }
    if (table.ranges == 0) return table;
    for (auto& intervals : earlier) {
        intervals.resize(static_cast<std::size_t>(table.ranges));
        for (const auto& interval : intervals) {
            table.earlier_begin.push_back(interval.begin);
            table.earlier_end.push_back(interval.end);
        }
    }
    return table;
}

Registry<MaskFactory>& masks() {
    static Registry<MaskFactory> registry("mask");
    return registry;
}

std::vector<Interval> parse_parts(const std::string& mask, const std::string& what, const std::string& arguments,
                                  std::int64_t tokens) {
    std::vector<Interval> parts;
    std::int64_t begin = 0;
    constexpr auto most = std::int64_t{1} << 40;
    for (const auto length : parse_lengths(arguments, what + " lengths")) {
        require(length <= most - begin, "the {} lengths of mask {}:{} sum to more than 2^40", what, mask, arguments);
        parts.push_back({begin, begin + length});
        begin += length;
    }
    require(begin == tokens, "the {} lengths of mask {}:{} sum to {}, the sequence has {} tokens; they must be equal{}",
            what, mask, arguments, begin, tokens, unit_hint(begin, tokens));
    return parts;
}

Mask make_mask(const std::string& spec, std::int64_t tokens) {
    require(tokens > 0 && tokens <= std::int64_t{1} << 31, "tokens is {}; a mask spans 1 to 2^31 tokens", tokens);
    std::vector<Mask> terms;
    for (std::size_t begin = 0; begin <= spec.size();) {
        const auto end = std::min(spec.find('+', begin), spec.size());
        const auto term = std::string_view(spec).substr(begin, end - begin);
        const auto [factory, arguments] = masks().find_spec(term);
        terms.push_back(factory(arguments, tokens));
        begin = end + 1;
    }
    auto mask = terms.front();
    for (auto term = std::next(terms.begin()); term != terms.end(); ++term) mask = intersect(mask, *term);
    return {spec, tokens, mask.segments(), mask.valid()};
}

}  // namespace ringlab::layouts
