#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration prefix("prefix", "prefix:N",
                              "prefix-LM: the first N tokens see each other, later ones see their past",
                              [](const std::string& arguments, std::int64_t tokens) {
                                  const auto length = parse_count(arguments, "the prefix length", 1);
                                  require(length <= tokens,
                                          "the prefix length {} exceeds the {} tokens of the sequence", length, tokens);
                                  std::vector<MaskSegment> segments{{{0, length}, {0, 0}, {length, 0}}};
                                  if (length < tokens) segments.push_back({{length, tokens}, {0, 0}, {1, 1}});
                                  return Mask("prefix", tokens, segments);
                              });

}  // namespace
}  // namespace ringlab::layouts
