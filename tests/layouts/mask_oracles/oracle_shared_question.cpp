#include "tests/layouts/mask_oracles/oracle.hpp"

namespace ringlab::mask_oracles {
namespace {

const OracleRegistration shared_question(
    __FILE__, "a question and its answers, each causal: an answer sees the question and itself, no other answer",
    random_lengths, [](const std::string& arguments, Token) {
        const auto part = parts_of(lengths_of(arguments));  // 0: the question
        return Term{
            .sees = [=](Token row, Token key) { return key <= row && (part[key] == 0 || part[key] == part[row]); }};
    });

}  // namespace
}  // namespace ringlab::mask_oracles
