#include "layouts/basics/typed_names.hpp"
#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

/// Parses "256/200" (room for 256 tokens, of which 200 are there) or "256" (all are there). Returns the tokens that are
/// there, and sets `end` to the end of the room.
Interval segment_from(std::string_view item, std::int64_t begin, std::int64_t& end) {
    constexpr auto most_tokens = std::int64_t{1} << 40;
    const auto slash = item.find('/');
    const auto room = parse_count(item.substr(0, slash), "the room of a segment", 1);
    const auto there =
        slash == item.npos ? room : parse_count(item.substr(slash + 1), "the length of a padded segment", 0);
    require(there <= room, "segment '{}' has {} tokens in a room of {}; there must be room for all", item, there, room);
    require(room <= most_tokens - begin, "the rooms of mask padded-segments sum to more than 2^40");
    end = begin + room;
    return {begin, begin + there};
}

const MaskRegistration padded_segments(
    "padded-segments", "padded-segments:ROOM/LEN,ROOM,ROOM/LEN",
    "block-causal segments of ROOM tokens, of which the first LEN are there and the rest is padding (LEN 0: all), as "
    "for images, language and actions of a vision-language-action model",
    [](const std::string& arguments, std::int64_t tokens) {
        std::vector<MaskSegment> segments;
        std::vector<Interval> valid;
        std::int64_t begin = 0;
        for (std::size_t at = 0; at <= arguments.size();) {
            const auto comma = std::min(arguments.find(',', at), arguments.size());
            std::int64_t end = 0;
            const auto there = segment_from(std::string_view(arguments).substr(at, comma - at), begin, end);
            if (there.size() > 0) {
                segments.push_back({.rows = there, .begin = Bound::fixed(0), .end = Bound::fixed(there.end)});
                valid.push_back(there);
            }
            if (there.end < end) segments.push_back({.rows = {there.end, end}});
            begin = end;
            at = comma + 1;
        }
        require(begin == tokens,
                "the rooms of mask padded-segments:{} sum to {}, the sequence has {} tokens; they must be equal{}",
                arguments, begin, tokens, unit_hint(begin, tokens));
        return Mask("padded-segments", tokens, segments, valid);
    });

}  // namespace
}  // namespace ringlab::layouts
