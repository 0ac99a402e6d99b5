#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration shared_question(
    "shared-question", "shared-question:LEN,LEN,NxK|@FILE",
    "a question and its answers, each causal: an answer sees the question and itself, no other answer",
    [](const std::string& arguments, std::int64_t tokens) {
        const auto parts = parse_parts("shared-question", "question and answer", arguments, tokens);
        std::vector<MaskSegment> segments{{parts.front(), {0, 0}, {1, 1}}};
        for (std::size_t i = 1; i < parts.size(); ++i)
            segments.push_back({parts[i], {parts[i].begin, 0}, {1, 1}, 0, {{{0, 0}, {parts.front().end, 0}}}});
        return Mask("shared-question", tokens, segments);
    });

}  // namespace
}  // namespace ringlab::layouts
