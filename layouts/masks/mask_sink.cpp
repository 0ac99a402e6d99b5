#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

// Attention sinks (Xiao et al. 2023, arXiv 2309.17453): the first keys stay visible after a window or a document has
// moved past them. A sink may not extend beyond the keys that a row sees, because a causal row would then see later
// keys.
const MaskRegistration sink(
    "sink", "sink:N",
    "added to other masks: a row also sees those of the first N keys, of any document, that come before all that it "
    "sees by the other masks together (padding counts as seen here). A sink never looks ahead, and a row that sees "
    "nothing by the other masks still sees nothing",
    [](const std::string& arguments, std::int64_t tokens) {
        const auto length = parse_count(arguments, "the sink length", 0);
        return Mask("sink", tokens,
                    {{.rows = {0, tokens}, .begin = Bound::fixed(0), .end = Bound::fixed(tokens), .sink = length}});
    });

}  // namespace
}  // namespace ringlab::layouts
