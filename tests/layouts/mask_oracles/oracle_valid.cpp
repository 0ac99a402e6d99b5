#include "tests/layouts/mask_oracles/oracle.hpp"

#include <algorithm>
#include <sstream>

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration valid(
    __FILE__, "everything outside these half-open ranges is padding: it sees nothing and is not seen",
    [](Random& random, Token tokens) {
        std::string text;
        for (Token at = 0; at < tokens && (text.empty() || pick(random, 0, 1) == 0);) {
            const auto begin = pick(random, at, std::min(tokens - 1, at + tokens / 3)),
                       end = pick(random, begin + 1, tokens);
            text += (text.empty() ? "" : ",") + std::to_string(begin) + "-" + std::to_string(end);
            at = end;
        }
        return text;
    },
    [](const std::string& arguments, Token tokens) {
        PerToken there;
        there.append(tokens, 0);
        std::istringstream ranges(arguments);
        for (std::string range; std::getline(ranges, range, ',');) {
            const auto end = std::stoll(range.substr(range.find('-') + 1));
            for (auto token = std::stoll(range); token < end; ++token) there.set(token, 1);
        }
        return Term{.is_padding = [=](Token token) { return !there[token]; }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
