#include "layouts/mask.hpp"

#include "layouts/names.hpp"

#include <set>

namespace ringlab::layouts {
namespace {

/// The rows in `rows` at which two bounds of different slope swap order, so that on either side one is the larger.
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
    return a.begin == b.begin && a.end == b.end && a.sink == b.sink && a.rows.end == b.rows.begin;
}

/// Appends the segment cut into pieces on which the bounds lie in [0, tokens] and do not cross.
void append_clamped(const MaskSegment& segment, std::int64_t tokens, std::vector<MaskSegment>& out) {
    const Bound zero{0, 0}, all{tokens, 0};
    std::set<std::int64_t> cuts{segment.rows.begin, segment.rows.end};
    for (const auto bound : {segment.begin, segment.end})
        for (const auto limit : {zero, all}) add_crossing(bound, limit, segment.rows, cuts);
    add_crossing(segment.begin, segment.end, segment.rows, cuts);

    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
        const Interval rows{*cut, *std::next(cut)};
        const auto clamp = [&](Bound b) { return smaller(larger(b, zero, rows.begin), all, rows.begin); };
        MaskSegment piece{rows, clamp(segment.begin), clamp(segment.end), std::max<std::int64_t>(segment.sink, 0)};
        // The last row decides too: bounds that meet at the first row may part later, never cross.
        const bool empty = piece.begin.at(rows.begin) >= piece.end.at(rows.begin) &&
                           piece.begin.at(rows.end - 1) >= piece.end.at(rows.end - 1);
        if (empty) piece = {rows, zero, zero, 0};
        if (!out.empty() && continues(out.back(), piece))
            out.back().rows.end = rows.end;
        else
            out.push_back(piece);
    }
}

}  // namespace

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
        std::set<std::int64_t> cuts{rows.begin, rows.end};
        add_crossing(i->begin, j->begin, rows, cuts);
        add_crossing(i->end, j->end, rows, cuts);
        for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
            const Interval piece{*cut, *std::next(cut)};
            segments.push_back({piece, larger(i->begin, j->begin, piece.begin), smaller(i->end, j->end, piece.begin),
                                std::max(i->sink, j->sink)});
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
    std::int64_t first_key = mask.tokens();  // that rows further back see, but for sinks
    std::int64_t sink = 0;
    for (auto segment = mask.segments().rbegin(); segment != mask.segments().rend(); ++segment) {
        const auto end = segment->rows.end;
        if (mask.row(end - 1) != RowKeys{} && first_key >= end && sink < end) ends.push_back(end);
        for (const auto row : {segment->rows.begin, end - 1})
            if (const auto seen = mask.row(row); seen != RowKeys{}) {
                first_key = std::min(first_key, seen.begin);
                sink = std::max(sink, seen.sink);
            }
    }
    require(!ends.empty(), "mask {} lets no row see anything; there are no sequences to take last rows of",
            mask.name());
    std::vector<Interval> rows;
    for (auto end = ends.rbegin(); end != ends.rend(); ++end)
        rows.push_back({std::max(rows.empty() ? 0 : rows.back().end, *end - count), *end});
    return rows;
}

Registry<MaskFactory>& masks() {
    static Registry<MaskFactory> registry("mask");
    return registry;
}

std::vector<Interval> parse_parts(const std::string& mask, const std::string& what, const std::string& arguments,
                                  std::int64_t tokens) {
    std::vector<Interval> parts;
    std::int64_t begin = 0;
    for (const auto length : parse_lengths(arguments, what + " lengths")) {
        require(length <= tokens - begin, "the {} lengths of mask {}:{} sum to more than the {} tokens of the sequence",
                what, mask, arguments, tokens);
        parts.push_back({begin, begin + length});
        begin += length;
    }
    require(begin == tokens, "the {} lengths of mask {}:{} sum to {}, the sequence has {} tokens; they must be equal",
            what, mask, arguments, begin, tokens);
    return parts;
}

Mask make_mask(const std::string& spec, std::int64_t tokens) {
    require(tokens > 0 && tokens <= std::int64_t{1} << 31, "tokens is {}; a mask spans 1 to 2^31 tokens", tokens);
    std::vector<Mask> terms;
    for (std::size_t begin = 0; begin <= spec.size();) {
        const auto end = std::min(spec.find('+', begin), spec.size());
        const auto term = Spec::parse(std::string_view(spec).substr(begin, end - begin));
        terms.push_back(find_typed(masks(), "mask", term.name).factory(term.arguments, tokens));
        begin = end + 1;
    }
    auto mask = terms.front();
    for (auto term = std::next(terms.begin()); term != terms.end(); ++term) mask = intersect(mask, *term);
    return {spec, tokens, mask.segments(), mask.valid()};
}

}  // namespace ringlab::layouts
