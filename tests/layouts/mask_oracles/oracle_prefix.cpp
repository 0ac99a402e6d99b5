#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration prefix(
    __FILE__, "prefix-LM: the first N tokens see each other, later ones see their past",
    [](Random& random, Token tokens) { return std::to_string(pick(random, 1, tokens)); },
    [](const std::string& arguments, Token) {
        const auto first = std::stoll(arguments);
        return Term{.sees = [=](Token row, Token key) { return row < first ? key < first : key <= row; }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
