#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration full(__FILE__, "every row sees every key", no_arguments,
                              [](const std::string&, Token) { return Term(); });

}  // namespace
}  // namespace ringlab::mask_oracles
