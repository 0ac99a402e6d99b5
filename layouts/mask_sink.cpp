#include "layouts/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration sink("sink", "sink:N", "added to a window: rows also see the first N keys of the sequence",
                            [](const std::string& arguments, std::int64_t tokens) {
                                const auto length = parse_count(arguments, "the sink length", 0);
                                return Mask("sink", tokens, {{{0, tokens}, {0, 0}, {tokens, 0}, length}});
                            });

}  // namespace
}  // namespace ringlab::layouts
