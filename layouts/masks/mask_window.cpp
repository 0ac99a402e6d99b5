#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration window("window", "window:LEFT,RIGHT", "row q sees keys q-LEFT..q+RIGHT; RIGHT 0 makes it causal",
                              [](const std::string& arguments, std::int64_t tokens) {
                                  const auto comma = arguments.find(',');
                                  require(comma != std::string::npos,
                                          "mask window:{} lacks a part; write window:LEFT,RIGHT, as in window:1024,0",
                                          arguments);
                                  const auto left =
                                      parse_count(std::string_view(arguments).substr(0, comma), "the window's LEFT", 0);
                                  const auto right = parse_count(std::string_view(arguments).substr(comma + 1),
                                                                 "the window's RIGHT", 0);
                                  // A window cannot reach beyond the sequence; limiting it here keeps bounds from
                                  // overflowing.
                                  return Mask("window", tokens,
                                              {{.rows = {0, tokens},
                                                .begin = Bound::behind_row(-std::min(left, tokens)),
                                                .end = Bound::behind_row(std::min(right, tokens) + 1)}});
                              });

}  // namespace
}  // namespace ringlab::layouts
