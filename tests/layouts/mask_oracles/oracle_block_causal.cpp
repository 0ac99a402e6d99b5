#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration block_causal(
    __FILE__,
    "segments see themselves and every earlier segment, as frames of a video do (add documents: for several videos)",
    random_lengths, [](const std::string& arguments, Token) {
        const auto segment = parts_of(lengths_of(arguments));
        return Term{.sees = [=](Token row, Token key) { return segment[key] <= segment[row]; }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
