#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration causal(
    "causal", "causal", "row q sees keys 0..q", [](const std::string& arguments, std::int64_t tokens) {
        require(arguments.empty(), "mask causal takes no arguments, got '{}'", arguments);
        return Mask("causal", tokens, {{.rows = {0, tokens}, .begin = Bound::fixed(0), .end = Bound::behind_row(1)}});
    });

}  // namespace
}  // namespace ringlab::layouts
