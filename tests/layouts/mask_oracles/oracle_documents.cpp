#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration documents(
    __FILE__, "packed documents: a row sees all of its own document (add causal+ to see only its past)", random_lengths,
    [](const std::string& arguments, Token) {
        const auto document = parts_of(lengths_of(arguments));
        return Term{.sees = [=](Token row, Token key) { return document[row] == document[key]; }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
