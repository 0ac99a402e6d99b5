#include "layouts/mask.hpp"

namespace ringlab::layouts {
namespace {

// As attention sinks are meant (Xiao et al. 2023, arXiv 2309.17453): keys that a window or a document has left behind
// stay visible. A sink that also reached behind the end of what a row sees would let a causal row look ahead.
const MaskRegistration sink(
    "sink", "sink:N",
    "added to other masks: a row also sees those of the first N keys, of whatever document, that come before what it "
    "sees by the other masks together (padding counts as seen here). So a sink looks back, never ahead, and a row that "
    "sees nothing stays blind",
    [](const std::string& arguments, std::int64_t tokens) {
        const auto length = parse_count(arguments, "the sink length", 0);
        return Mask("sink", tokens, {{{0, tokens}, {0, 0}, {tokens, 0}, length}});
    });

}  // namespace
}  // namespace ringlab::layouts
