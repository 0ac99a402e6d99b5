#include "layouts/masks/mask.hpp"

namespace ringlab::layouts {
namespace {

const MaskRegistration prefix_documents(
    "prefix-documents", "prefix-documents:PREFIX,REST,PREFIX,REST|@FILE",
    "packed prefix-LM documents: the first PREFIX tokens of each see each other, the other REST see their past in it",
    [](const std::string& arguments, std::int64_t tokens) {
        const auto parts = parse_parts("prefix-documents", "prefix and rest", arguments, tokens);
        require(parts.size() % 2 == 0,
                "mask prefix-documents:{} has {} lengths; each document has two, its prefix's and that of the rest",
                arguments, parts.size());
        std::vector<MaskSegment> segments;
        for (std::size_t i = 0; i < parts.size(); i += 2) {
            const auto first = parts[i].begin;
            segments.push_back({.rows = parts[i], .begin = Bound::fixed(first), .end = Bound::fixed(parts[i].end)});
            segments.push_back({.rows = parts[i + 1], .begin = Bound::fixed(first), .end = Bound::behind_row(1)});
        }
        return Mask("prefix-documents", tokens, segments);
    });

}  // namespace
}  // namespace ringlab::layouts
