// Masks whose rows follow one rule, or two.

#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration full(
    {"full", "every row sees every key", [](const std::string&, std::int64_t tokens) {
         return Mask("full", tokens, {{.rows = {0, tokens}, .begin = Bound::fixed(0), .end = Bound::fixed(tokens)}});
     }});

const MaskRegistration causal(
    {"causal", "row q sees keys 0..q", [](const std::string&, std::int64_t tokens) {
         return Mask("causal", tokens, {{.rows = {0, tokens}, .begin = Bound::fixed(0), .end = Bound::behind_row(1)}});
     }});

const MaskRegistration prefix(
    {"prefix:N", "prefix-LM: the first N tokens see each other, later ones see their past",
     [](const std::string& arguments, std::int64_t tokens) {
         const auto length = parse_count(arguments, "the prefix length", 1);
         require(length <= tokens, "the prefix length {} exceeds the {} tokens of the sequence", length, tokens);
         std::vector<MaskSegment> segments{
             {.rows = {0, length}, .begin = Bound::fixed(0), .end = Bound::fixed(length)}};
         if (length < tokens)
             segments.push_back({.rows = {length, tokens}, .begin = Bound::fixed(0), .end = Bound::behind_row(1)});
         return Mask("prefix", tokens, segments);
     }});

Mask window_mask(const std::string& arguments, std::int64_t tokens) {
    const auto comma = arguments.find(',');
    require(comma != std::string::npos, "mask window:{} lacks a part; write window:LEFT,RIGHT, as in window:1024,0",
            arguments);
    const auto left = parse_count(std::string_view(arguments).substr(0, comma), "the window's LEFT", 0);
    const auto right = parse_count(std::string_view(arguments).substr(comma + 1), "the window's RIGHT", 0);
    // A window cannot reach beyond the sequence; limiting it here keeps bounds from overflowing.
    return Mask("window", tokens,
                {{.rows = {0, tokens},
                  .begin = Bound::behind_row(-std::min(left, tokens)),
                  .end = Bound::behind_row(std::min(right, tokens) + 1)}});
}

const MaskRegistration window({"window:LEFT,RIGHT", "row q sees keys q-LEFT..q+RIGHT; RIGHT 0 makes it causal",
                               window_mask});

// Attention sinks (Xiao et al. 2023, arXiv 2309.17453): the first keys stay visible after a window or a document has
// moved past them. A sink may not extend beyond the keys that a row sees, because a causal row would then see later
// keys.
const MaskRegistration sink(
    {"sink:N",
     "added to other masks: a row also sees those of the first N keys, of any document, that come before all that it "
     "sees by the other masks together (padding counts as seen here). A sink never looks ahead, and a row that sees "
     "nothing by the other masks still sees nothing",
     [](const std::string& arguments, std::int64_t tokens) {
         const auto length = parse_count(arguments, "the sink length", 0);
         return Mask("sink", tokens,
                     {{.rows = {0, tokens}, .begin = Bound::fixed(0), .end = Bound::fixed(tokens), .sink = length}});
     }});

}  // namespace
}  // namespace ringlab::layouts
