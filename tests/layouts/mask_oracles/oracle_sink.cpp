#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration sink(
    __FILE__,
    "added to other masks: a row also sees those of the first N keys, of any document, that come before all that it "
    "sees by the other masks together (padding counts as seen here). A sink never looks ahead, and a row that sees "
    "nothing by the other masks still sees nothing",
    [](Random& random, Token tokens) { return std::to_string(pick(random, 0, tokens + 2)); },
    [](const std::string& arguments, Token) { return Term{.sink = std::stoll(arguments)}; });

}  // namespace
}  // namespace ringlab::mask_oracles
