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

/// What one query row sees: the global key positions [begin, end), and [0, sink) with sink <= begin.
/// A row that sees nothing has begin == end == sink == 0.
struct RowKeys {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t sink = 0;

    constexpr bool contains(std::int64_t key) const { return (begin <= key && key < end) || key < sink; }
    friend constexpr bool operator==(const RowKeys&, const RowKeys&) = default;
};

/// Consecutive query rows whose bounds follow one rule: row q sees [begin.at(q), end.at(q)) and [0, min(sink, begin)).
/// Within a segment 0 <= begin.at(q) <= end.at(q) <= tokens holds for every row, so interpreters need not clamp.
struct MaskSegment {
    Interval rows;
    Bound begin;
    Bound end;
    std::int64_t sink = 0;

    constexpr RowKeys at(std::int64_t row) const {
        const auto first = begin.at(row), last = end.at(row);
        return first < last ? RowKeys{first, last, std::min(sink, first)} : RowKeys{};
    }
};

/// Who sees whom, in global positions: each query row sees one interval of keys, perhaps a sink of first keys, and only
/// valid keys. Full, causal, window, documents, prefix, block-causal masks and padding are all of this form, and so is
/// the intersection of any two of them.
///
/// Example: causal over 4 tokens is one segment, rows [0, 4), begin {0, 0}, end {1, 1}: row 2 sees keys [0, 3).
class Mask {
public:
    /// Builds a mask from segments that cover rows [0, tokens) in order. Bounds may lie outside [0, tokens] or cross:
    /// they are clamped, and segments split, so that MaskSegment's invariant holds. `valid` is sorted and disjoint.
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

/// Rows see what both masks let them see; sinks of either are kept where they are set, and limited to positions below
/// the row's own interval and to rows that see anything. Throws Error if the masks differ in tokens.
Mask intersect(const Mask& a, const Mask& b);

/// The mask over more tokens: the added rows see nothing and nobody sees the added keys.
Mask pad(const Mask& mask, std::int64_t tokens);

/// The last `count` rows of every sequence that a mask holds, or all where there are fewer: those up to a row that sees
/// something while rows after it only look at what comes after it, or see nothing. What decoding (1) and suffixes ask
/// of packed documents. Rows of padding among them stay: they see nothing.
std::vector<Interval> last_rows(const Mask& mask, std::int64_t count);

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
