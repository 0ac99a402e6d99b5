#pragma once

#include "layouts/basics/basic_types.hpp"
#include "layouts/basics/registry.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// A position that is constant (slope 0) or moves with the query row (slope 1): offset + slope * row.
struct Bound {
    std::int64_t offset = 0;
    std::int64_t slope = 0;

    /// The same position for every row.
    static constexpr Bound fixed(std::int64_t position) { return {position, 0}; }
    /// So many positions behind the row's own: 0 is the row's own key, 1 the end of what a causal row sees.
    static constexpr Bound behind_row(std::int64_t distance) { return {distance, 1}; }

    constexpr std::int64_t at(std::int64_t row) const { return offset + slope * row; }
    friend constexpr bool operator==(const Bound&, const Bound&) = default;
};

/// The keys that one query row sees, as global positions: the interval [begin, end), before it the first keys [0, sink)
/// with sink <= begin, and between the two the intervals `earlier`, in order. At least one hidden key lies before and
/// after each of `earlier`. A fully masked row has begin == end == sink == 0.
struct RowKeys {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t sink = 0;
    std::vector<Interval> earlier = {};

    bool contains(std::int64_t key) const {
        return (begin <= key && key < end) || key < sink ||
               std::ranges::any_of(earlier, [&](const Interval& interval) { return interval.contains(key); });
    }

    /// The first key that the row sees; 0 for a fully masked row.
    std::int64_t first() const { return sink > 0 ? 0 : earlier.empty() ? begin : earlier.front().begin; }
    /// End of the keys that the row sees before `begin`; 0 if there are none.
    std::int64_t end_before() const { return earlier.empty() ? sink : earlier.back().end; }
    /// Number of keys that the row sees, padding included.
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
/// those of the first `sink` keys that come before all of these. When masks are combined, the ranges are intersected; a
/// sink is added to what remains.
///
/// Within a segment of a Mask 0 <= begin.at(q) <= end.at(q) <= tokens, and all rows see something or all see nothing.
/// The ranges `earlier` lie before `begin`, in order; each holds at least one key for every row, and at least one
/// hidden key follows each. Code that reads segments therefore need not clamp.
struct MaskSegment {
    Interval rows;
    Bound begin = {};
    Bound end = {};
    std::int64_t sink = 0;
    std::vector<KeyRange> earlier = {};

    RowKeys at(std::int64_t row) const;

    /// First key that a row sees, not counting the sink; the sink ends there at the latest.
    const Bound& first_bound() const { return earlier.empty() ? begin : earlier.front().begin; }
};

/// Which keys each query row sees, in global positions: one interval of keys, possibly earlier intervals and a sink of
/// first keys, and of all these only the valid keys. All masks and padding have this form, and so has the intersection
/// of any two of them.
///
/// Example: causal over 4 tokens is one segment, rows [0, 4), begin Bound::fixed(0), end Bound::behind_row(1): row 2
/// sees keys [0, 3).
class Mask {
public:
    /// Builds a mask from segments that cover rows [0, tokens) in order. Bounds may lie outside [0, tokens] or cross,
    /// and ranges may overlap and come in any order: bounds are clamped, ranges sorted and merged, and segments split
    /// until MaskSegment's invariant holds. `valid` must be sorted and disjoint. Throws Error if segments do not follow
    /// each other or `valid` is not in order.
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

    /// The keys that row `row` sees, padding included; 0 <= row < tokens. Logarithmic in the number of segments.
    RowKeys row(std::int64_t row) const { return segments_[segment_of(row)].at(row); }

    /// Index of the segment that holds `row`.
    std::size_t segment_of(std::int64_t row) const;

    /// The element-wise definition, for references and tests.
    bool visible(std::int64_t query, std::int64_t key) const { return row(query).contains(key) && key_is_valid(key); }

private:
    std::string name_;
    std::int64_t tokens_;
    std::vector<MaskSegment> segments_;
    std::vector<Interval> valid_;
};

/// The mask in which each row sees the keys that both masks show it. The longer sink of the two is added to that,
/// limited to earlier keys and to rows that see anything. Throws Error if the masks differ in tokens.
Mask intersect(const Mask& a, const Mask& b);

/// The mask over more tokens: the added rows see nothing and no row sees the added keys. Throws Error if `tokens` is
/// smaller than the mask's.
Mask pad(const Mask& mask, std::int64_t tokens);

/// The last `count` query rows of every sequence in the mask, or all rows of a shorter sequence. A sequence ends with a
/// row that sees something, if all later rows see only later keys (first keys of a sink and `earlier` ranges aside) or
/// nothing. Decoding asks packed documents for 1 row each, a suffix asks for several. Padding rows among them are kept;
/// they see nothing. Throws Error if `count` is below 1 or no row sees anything.
std::vector<Interval> last_rows(const Mask& mask, std::int64_t count);

/// The RowKeys of every row, and which keys are valid, as columns for files.
struct RowTable {
    std::vector<std::int64_t> begin, end, sink;
    std::vector<std::int64_t> earlier_begin, earlier_end;  ///< (token, ranges); equal where a row has fewer ranges
    std::int64_t ranges = 0;                               ///< largest size of RowKeys::earlier of any row
    std::vector<std::int8_t> valid;
};
RowTable row_table(const Mask& mask);

/// Makes a mask from what a user types: terms joined by '+', each "name" or "name:arguments", for instance
/// "causal+documents:220,225,512x4" or "window:1024,0+sink:4". The terms are intersected. Throws Error that says what
/// would be right.
Mask make_mask(const std::string& spec, std::int64_t tokens);

/// Parses the argument of masks that take the lengths of consecutive parts of the sequence, "2,3x2" or "@FILE", and
/// returns these parts. `what` names a part in messages. Throws Error unless the lengths sum to `tokens`.
std::vector<Interval> parse_parts(const std::string& mask, const std::string& what, const std::string& arguments,
                                  std::int64_t tokens);

using MaskFactory = std::function<Mask(const std::string& arguments, std::int64_t tokens)>;
Registry<MaskFactory>& masks();

/// Makes a mask known by name. Its examples and its definition for tests are in tests/layouts/mask_oracles.cpp.
using MaskRegistration = Registration<masks>;

}  // namespace ringlab::layouts
