#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration full(
    "full", "full", "every row sees every key", [](const std::string& arguments, std::int64_t tokens) {
        require(arguments.empty(), "mask full takes no arguments, got '{}'", arguments);
        return Mask("full", tokens, {{.rows = {0, tokens}, .begin = Bound::fixed(0), .end = Bound::fixed(tokens)}});
    });

}  // namespace
}  // namespace ringlab::layouts
