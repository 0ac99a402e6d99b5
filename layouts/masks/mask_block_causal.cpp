#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration block_causal(
    "block-causal", "block-causal:LEN,LEN,NxK|@FILE",
    "segments see themselves and every earlier segment, as frames of a video do (add documents: for several videos)",
    [](const std::string& arguments, std::int64_t tokens) {
        std::vector<MaskSegment> segments;
        for (const auto& part : parse_parts("block-causal", "segment", arguments, tokens))
            segments.push_back({.rows = part, .begin = Bound::fixed(0), .end = Bound::fixed(part.end)});
        return Mask("block-causal", tokens, segments);
    });

}  // namespace
}  // namespace ringlab::layouts
