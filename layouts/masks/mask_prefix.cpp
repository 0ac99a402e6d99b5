#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration prefix(
    "prefix", "prefix:N", "prefix-LM: the first N tokens see each other, later ones see their past",
    [](const std::string& arguments, std::int64_t tokens) {
        const auto length = parse_count(arguments, "the prefix length", 1);
        require(length <= tokens, "the prefix length {} exceeds the {} tokens of the sequence", length, tokens);
        std::vector<MaskSegment> segments{{.rows = {0, length}, .begin = Bound::fixed(0), .end = Bound::fixed(length)}};
        if (length < tokens)
            segments.push_back({.rows = {length, tokens}, .begin = Bound::fixed(0), .end = Bound::behind_row(1)});
        return Mask("prefix", tokens, segments);
    });

}  // namespace
}  // namespace ringlab::layouts
