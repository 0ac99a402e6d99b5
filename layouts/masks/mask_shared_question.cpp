#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration shared_question(
    "shared-question", "shared-question:LEN,LEN,NxK|@FILE",
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
    });

}  // namespace
}  // namespace ringlab::layouts
