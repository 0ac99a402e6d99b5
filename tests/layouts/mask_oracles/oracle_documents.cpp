#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration documents(
    __FILE__, "packed documents: a row sees its own document, all of it (add causal+ for its past alone)",
    random_lengths, [](const std::string& arguments, Token) {
        const auto document = parts_of(lengths_of(arguments));
        return Term{.sees = [=](Token row, Token key) { return document[row] == document[key]; }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
