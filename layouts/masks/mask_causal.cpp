#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration causal("causal", "causal", "row q sees keys 0..q",
                              [](const std::string& arguments, std::int64_t tokens) {
                                  require(arguments.empty(), "mask causal takes no arguments, got '{}'", arguments);
                                  return Mask("causal", tokens, {{{0, tokens}, {0, 0}, {1, 1}}});
                              });

}  // namespace
}  // namespace ringlab::layouts
