// Masks of consecutive parts of the sequence, each with a rule of its own.

#include "layouts/basics/typed_names.hpp"
#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration documents(
    {"documents:LEN,LEN,NxK|@FILE",
     "packed documents: a row sees all of its own document (add causal+ to see only its past)",
     [](const std::string& arguments, std::int64_t tokens) {
         std::vector<MaskSegment> segments;
         for (const auto& part : parse_parts("documents", "document", arguments, tokens))
             segments.push_back({.rows = part, .begin = Bound::fixed(part.begin), .end = Bound::fixed(part.end)});
         return Mask("documents", tokens, segments);
     }});

const MaskRegistration block_causal(
    {"block-causal:LEN,LEN,NxK|@FILE",
     "segments see themselves and every earlier segment, as frames of a video do (add documents: for several videos)",
     [](const std::string& arguments, std::int64_t tokens) {
         std::vector<MaskSegment> segments;
         for (const auto& part : parse_parts("block-causal", "segment", arguments, tokens))
             segments.push_back({.rows = part, .begin = Bound::fixed(0), .end = Bound::fixed(part.end)});
         return Mask("block-causal", tokens, segments);
     }});

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
    {"padded-segments:ROOM/LEN,ROOM,ROOM/LEN",
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
     }});

const MaskRegistration chunks(
    {"chunks:SIZE",
     "chunks of SIZE tokens, the last one of the rest; a row sees all of its own chunk (add causal+ for Llama 4's "
     "local layers)",
     [](const std::string& arguments, std::int64_t tokens) {
         const auto size = parse_count(arguments, "the size of chunks", 1);
         constexpr std::int64_t most = 1 << 20;
         require(tokens / size < most, "mask chunks:{} makes more than {} chunks of {} tokens; give a larger SIZE",
                 arguments, most, tokens);
         std::vector<MaskSegment> segments;
         for (std::int64_t begin = 0; begin < tokens;) {
             const auto end = begin + std::min(size, tokens - begin);
             segments.push_back({.rows = {begin, end}, .begin = Bound::fixed(begin), .end = Bound::fixed(end)});
             begin = end;
         }
         return Mask("chunks", tokens, segments);
     }});

const MaskRegistration prefix_documents(
    {"prefix-documents:PREFIX,REST,PREFIX,REST|@FILE",
     "packed prefix-LM documents: the first PREFIX tokens of each see each other, the other REST see their past in it",
     [](const std::string& arguments, std::int64_t tokens) {
         const auto parts = parse_parts("prefix-documents", "prefix and rest", arguments, tokens);
         require(parts.size() % 2 == 0,
                 "mask prefix-documents:{} has {} lengths; each document has two, its prefix's and that of the rest",
                 arguments, parts.size());
         std::vector<MaskSegment> segments;
         for (std::size_t i = 0; i < parts.size(); i += 2) {
             const auto first = parts[i].begin;
             segments.push_back({.rows = parts[i], .begin = Bound::fixed(first), .end = Bound::fixed(parts[i].end)});
             segments.push_back({.rows = parts[i + 1], .begin = Bound::fixed(first), .end = Bound::behind_row(1)});
         }
         return Mask("prefix-documents", tokens, segments);
     }});

const MaskRegistration shared_question(
    {"shared-question:LEN,LEN,NxK|@FILE",
     "a question and its answers, each causal: an answer sees the question and itself, no other answer",
     [](const std::string& arguments, std::int64_t tokens) {
         const auto parts = parse_parts("shared-question", "question and answer", arguments, tokens);
         std::vector<MaskSegment> segments{
             {.rows = parts.front(), .begin = Bound::fixed(0), .end = Bound::behind_row(1)}};
         for (std::size_t i = 1; i < parts.size(); ++i)
             segments.push_back({.rows = parts[i],
                                 .begin = Bound::fixed(parts[i].begin),
                                 .end = Bound::behind_row(1),
                                 .earlier = {{Bound::fixed(0), Bound::fixed(parts.front().end)}}});
         return Mask("shared-question", tokens, segments);
     }});

const MaskRegistration valid(
    {"valid:BEGIN-END,BEGIN-END",
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
     }});

}  // namespace
}  // namespace ringlab::layouts
