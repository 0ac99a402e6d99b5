#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration documents(
    "documents", "documents:LEN,LEN,NxK|@FILE",
    "packed documents: a row sees all of its own document (add causal+ to see only its past)",
    [](const std::string& arguments, std::int64_t tokens) {
        std::vector<MaskSegment> segments;
        for (const auto& part : parse_parts("documents", "document", arguments, tokens))
            segments.push_back({.rows = part, .begin = Bound::fixed(part.begin), .end = Bound::fixed(part.end)});
        return Mask("documents", tokens, segments);
    });

}  // namespace
}  // namespace ringlab::layouts
