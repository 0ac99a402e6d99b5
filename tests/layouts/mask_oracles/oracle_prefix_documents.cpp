#include "tests/layouts/mask_oracles/oracle.hpp"

#include <algorithm>

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration prefix_documents(
    __FILE__,
    "packed prefix-LM documents: the first PREFIX tokens of each see each other, the other REST see their past in it",
    [](Random& random, Token tokens) {
        std::string text;
        for (auto left = tokens; left > 0;) {
            const auto document = left < 4 || pick(random, 0, 2) == 0 ? left : pick(random, 2, left - 2);
            const auto prefix = pick(random, 1, std::max<Token>(1, document - 1));  // one token alone is refused
            text += (text.empty() ? "" : ",") + std::to_string(prefix) + "," + std::to_string(document - prefix);
            left -= document;
        }
        return text;
    },
    [](const std::string& arguments, Token) {
        const auto part = parts_of(lengths_of(arguments));  // 2n: the prefix of document n, 2n + 1: its rest
        return Term{.sees = [=](Token row, Token key) {
            const bool same_document = part[row] / 2 == part[key] / 2;
            const bool in_prefix = part[row] == part[key] && part[row] % 2 == 0;
            return same_document && (in_prefix || key <= row);
        }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
