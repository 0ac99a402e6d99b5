#include "tests/layouts/mask_oracles/oracle.hpp"

#include <limits>

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration window(
    __FILE__, "row q sees keys q-LEFT..q+RIGHT; RIGHT 0 makes it causal",
    [](Random& random, Token tokens) {
        const auto side = [&] {
            return pick(random, 0, 9) == 0 ? std::numeric_limits<Token>::max() : pick(random, 0, tokens + 1);
        };
        const auto left = side(), right = pick(random, 0, 1) == 0 ? 0 : side();
        return std::to_string(left) + "," + std::to_string(right);
    },
    [](const std::string& arguments, Token) {
        const auto sides = lengths_of(arguments);
        return Term{.sees = [=](Token row, Token key) { return row - key <= sides.at(0) && key - row <= sides.at(1); }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
