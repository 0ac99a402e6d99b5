#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration valid(
    "valid", "valid:BEGIN-END,BEGIN-END",
    "everything outside these half-open ranges is padding: it sees nothing and is not seen",
    [](const std::string& arguments, std::int64_t tokens) {
        std::vector<MaskSegment> segments;
        std::vector<Interval> intervals;
        std::int64_t next = 0;
        std::string_view text = arguments;
        while (!text.empty()) {
            const auto item = text.substr(0, text.find(','));
            text.remove_prefix(std::min(item.size() + 1, text.size()));
            const auto dash = item.find('-');
            require(dash != std::string_view::npos, "valid range '{}' must be BEGIN-END, as in 0-1000", item);
            const Interval range{parse_count(item.substr(0, dash), "the begin of a valid range", 0),
                                 parse_count(item.substr(dash + 1), "the end of a valid range", 1)};
            require(range.begin >= next && range.size() > 0 && range.end <= tokens,
                    "valid range {} is empty, out of order or past the {} tokens of the sequence", item, tokens);
            if (next < range.begin) segments.push_back({.rows = {next, range.begin}});
            segments.push_back({.rows = range, .begin = Bound::fixed(0), .end = Bound::fixed(tokens)});
            intervals.push_back(range);
            next = range.end;
        }
        require(!intervals.empty(), "mask valid needs ranges, as in valid:0-1000");
        if (next < tokens) segments.push_back({.rows = {next, tokens}});
        return Mask("valid", tokens, segments, intervals);
    });

}  // namespace
}  // namespace ringlab::layouts
