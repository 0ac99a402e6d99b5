#include "layouts/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration documents(
    "documents", "documents:LEN,LEN,NxK|@FILE",
    "packed documents: a row sees its own document, all of it (add causal+ for its past alone)",
    [](const std::string& arguments, std::int64_t tokens) {
        std::vector<MaskSegment> segments;
        std::int64_t begin = 0;
        for (const auto length : parse_lengths(arguments, "document lengths")) {
            require(length <= tokens - begin,
                    "the document lengths of mask documents:{} sum to more than the {} tokens of the sequence",
                    arguments, tokens);
            segments.push_back({{begin, begin + length}, {begin, 0}, {begin + length, 0}});
            begin += length;
        }
        require(begin == tokens,
                "the document lengths of mask documents:{} sum to {}, the sequence has {} tokens; they must be equal",
                arguments, begin, tokens);
        return Mask("documents", tokens, segments);
    });

}  // namespace
}  // namespace ringlab::layouts
