#include "layouts/masks/mask.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

const MaskRegistration chunks(
    "chunks", "chunks:SIZE",
    "chunks of SIZE tokens, the last one of the rest; a row sees all of its own chunk (add causal+ for Llama 4's local "
    "layers)",
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
    });

}  // namespace
}  // namespace ringlab::layouts
