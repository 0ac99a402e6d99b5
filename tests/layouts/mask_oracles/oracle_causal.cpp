#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration causal(__FILE__, "row q sees keys 0..q", no_arguments, [](const std::string&, Token) {
    return Term{.sees = [](Token row, Token key) { return key <= row; }};
});

}  // namespace
}  // namespace ringlab::mask_oracles
