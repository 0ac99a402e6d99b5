#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration chunks(
    __FILE__,
    "chunks of SIZE tokens, the last one of the rest; a row sees all of its own chunk (add causal+ for Llama 4's local "
    "layers)",
    [](Random& random, Token tokens) { return std::to_string(pick(random, 1, tokens + 1)); },
    [](const std::string& arguments, Token) {
        const auto size = std::stoll(arguments);
        return Term{.sees = [=](Token row, Token key) { return row / size == key / size; }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
