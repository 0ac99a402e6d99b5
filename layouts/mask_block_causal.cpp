#include "layouts/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration block_causal(
    "block-causal", "block-causal:LEN,LEN,NxK|@FILE",
    "segments see themselves and every earlier segment, as frames of a video do",
    [](const std::string& arguments, std::int64_t tokens) {
        std::vector<MaskSegment> segments;
        std::int64_t begin = 0;
        for (const auto length : parse_lengths(arguments, "segment lengths")) {
            require(length <= tokens - begin,
                    "the segment lengths of mask block-causal:{} sum to more than the {} tokens of the sequence",
                    arguments, tokens);
            segments.push_back({{begin, begin + length}, {0, 0}, {begin + length, 0}});
            begin += length;
        }
        require(begin == tokens,
                "the segment lengths of mask block-causal:{} sum to {}, the sequence has {} tokens; they must be equal",
                arguments, begin, tokens);
        return Mask("block-causal", tokens, segments);
    });

}  // namespace
}  // namespace ringlab::layouts
