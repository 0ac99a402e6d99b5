#pragma once

#include "layouts/registry.hpp"
#include "layouts/units.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// A position that is constant (slope 0) or moves with the query row (slope 1): offset + slope * row.
struct Bound {
    std::int64_t offset = 0;
    std::int64_t slope = 0;

    constexpr std::int64_t at(std::int64_t row) const { return offset + slope * row; }
    friend constexpr bool operator==(const Bound&, const Bound&) = default;
};

/// What one query row sees: the global key positions [begin, end), before them the first keys [0, sink), sink <= begin,
/// and between the two the intervals `earlier`, in order. At least one key is hidden before and behind each of these. A
/// row that sees nothing has begin == end == sink == 0.
struct RowKeys {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t sink = 0;
    std::vector<Interval> earlier = {};

    bool contains(std::int64_t key) const {
        return (begin <= key && key < end) || key < sink ||
               std::ranges::any_of(earlier, [&](const Interval& interval) { return interval.contains(key); });
    }

    /// The first key that the row sees, if it sees any.
    std::int64_t first() const { return sink > 0 ? 0 : earlier.empty() ? begin : earlier.front().begin; }
    /// Where the keys end that it sees before [begin, end); 0 if there are none.
    std::int64_t end_before() const { return earlier.empty() ? sink : earlier.back().end; }
    /// How many keys it sees, padding among them.
    std::int64_t count() const;

    friend bool operator==(const RowKeys&, const RowKeys&) = default;
};

/// The keys [begin.at(q), end.at(q)) of row q.
struct KeyRange {
    Bound begin;
    Bound end;

    constexpr Interval at(std::int64_t row) const { return {begin.at(row), end.at(row)}; }
    friend constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

/// Consecutive query rows whose bounds follow one rule: row q sees [begin.at(q), end.at(q)), the ranges `earlier`, and
/// of the first `sink` keys those that come before all of them. Where masks are joined, the ranges are intersected; a
/// sink is added to what remains.
///
/// Within a segment of a Mask 0 <= begin.at(q) <= end.at(q) <= tokens, and all rows see something or all see nothing.
/// The ranges `earlier` lie before `begin`, in order; each shows every row at least one key, and at least one key is
/// hidden behind each. So interpreters need not clamp.
struct MaskSegment {
    Interval rows;
    Bound begin;
    Bound end;
    std::int64_t sink = 0;
    std::vector<KeyRange> earlier = {};

    RowKeys at(std::int64_t row) const;

    /// Where what a row sees begins, sink aside: the sink ends there at the latest.
    const Bound& lead() const { return earlier.empty() ? begin : earlier.front().begin; }
};

/// Who sees whom, in global positions: each query row sees one interval of keys, perhaps some before it and a sink of
/// first keys, and only valid keys. All masks and padding are of this form, and so is the intersection of any two of
/// them.
///
/// Example: causal over 4 tokens is one segment, rows [0, 4), begin {0, 0}, end {1, 1}: row 2 sees keys [0, 3).
class Mask {
public:
    /// Builds a mask from segments that cover rows [0, tokens) in order. Bounds may lie outside [0, tokens] or cross,
    /// ranges overlap and come in any order: they are clamped, put in order and joined, and segments split, so that
    /// MaskSegment's invariant holds. `valid` is sorted and disjoint.
    Mask(std::string name, std::int64_t tokens, const std::vector<MaskSegment>& segments, std::vector<Interval> valid);

    /// All keys valid.
    Mask(std::string name, std::int64_t tokens, const std::vector<MaskSegment>& segments);

    const std::string& name() const { return name_; }
    std::int64_t tokens() const { return tokens_; }
    const std::vector<MaskSegment>& segments() const { return segments_; }

    /// Positions of keys that exist, as sorted disjoint intervals; everything but padding.
    const std::vector<Interval>& valid() const { return valid_; }
    bool all_keys_valid() const { return valid_.size() == 1 && valid_.front() == Interval{0, tokens_}; }
    bool key_is_valid(std::int64_t key) const;

    /// What row `row` sees, before validity; 0 <= row < tokens. Logarithmic in the number of segments.
    RowKeys row(std::int64_t row) const { return segments_[segment_of(row)].at(row); }

    /// Index of the segment that holds `row`.
    std::size_t segment_of(std::int64_t row) const;

    /// The element-wise definition, for references and tests.
    bool visible(std::int64_t row, std::int64_t key) const { return row_contains(row, key) && key_is_valid(key); }

private:
    bool row_contains(std::int64_t row_index, std::int64_t key) const { return row(row_index).contains(key); }

    std::string name_;
    std::int64_t tokens_;
    std::vector<MaskSegment> segments_;
    std::vector<Interval> valid_;
};

/// Rows see what both masks let them see; the sinks of either are added to that, limited to keys before it and to rows
/// that see anything. Throws Error if the masks differ in tokens.
Mask intersect(const Mask& a, const Mask& b);

/// The mask over more tokens: the added rows see nothing and nobody sees the added keys.
Mask pad(const Mask& mask, std::int64_t tokens);

/// The last `count` rows of every sequence that a mask holds, or all where there are fewer: those up to a row that sees
/// something while rows after it only look at what comes after it, or see nothing. What decoding (1) and suffixes ask
/// of packed documents. Rows of padding among them stay: they see nothing.
std::vector<Interval> last_rows(const Mask& mask, std::int64_t count);

/// What each row sees, as columns for files: RowKeys row by row, and which keys are valid.
struct RowTable {
    std::vector<std::int64_t> begin, end, sink;
    std::vector<std::int64_t> earlier_begin, earlier_end;  ///< (token, ranges); equal where a row has fewer ranges
    std::int64_t ranges = 0;                               ///< the most intervals that RowKeys::earlier has
    std::vector<std::int8_t> valid;
};
RowTable row_table(const Mask& mask);

/// A mask from what a user types: terms joined by '+', each "name" or "name:arguments", intersected, for instance
/// "causal+documents:220,225,@more.txt" or "window:1024,0+sink:4". Throws Error that says what would be right.
Mask make_mask(const std::string& spec, std::int64_t tokens);

/// For masks that take the lengths of consecutive parts, as "2,3x2" or "@FILE": the parts. `what` names one of them in
/// messages. Throws Error unless they make up the sequence.
std::vector<Interval> parse_parts(const std::string& mask, const std::string& what, const std::string& arguments,
                                  std::int64_t tokens);

using MaskFactory = std::function<Mask(const std::string& arguments, std::int64_t tokens)>;
Registry<MaskFactory>& masks();

/// A namespace-scope object of this type makes a mask known by name.
struct MaskRegistration {
    MaskRegistration(std::string name, std::string usage, std::string help, MaskFactory factory) {
        masks().add(std::move(name), {std::move(usage), std::move(help), std::move(factory)});
    }
};

}  // namespace ringlab::layouts
