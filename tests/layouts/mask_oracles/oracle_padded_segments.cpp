#include "tests/layouts/mask_oracles/oracle.hpp"

#include <sstream>

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration padded_segments(
    __FILE__,
    "block-causal segments of ROOM tokens, of which the first LEN are there and the rest is padding (LEN 0: all), as "
    "for images, language and actions of a vision-language-action model",
    [](Random& random, Token tokens) {
        std::string text;
        for (auto left = tokens; left > 0;) {
            const auto room = pick(random, 1, left);
            text += (text.empty() ? "" : ",") + std::to_string(room);
            if (pick(random, 0, 1) == 0) text += "/" + std::to_string(pick(random, 0, room));
            left -= room;
        }
        return text;
    },
    [](const std::string& arguments, Token) {
        PerToken segment, there;
        Token number = 0;
        std::istringstream items(arguments);
        for (std::string item; std::getline(items, item, ',');) {
            const auto slash = item.find('/');
            const auto room = std::stoll(item), length = slash == item.npos ? room : std::stoll(item.substr(slash + 1));
            segment.append(room, number++);
            there.append(length, 1);
            there.append(room - length, 0);
        }
        return Term{.sees = [=](Token row, Token key) { return segment[key] <= segment[row]; },
                    .is_padding = [=](Token token) { return !there[token]; }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
