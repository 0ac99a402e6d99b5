#include "tests/reference/cpu_gate.hpp"

#include "reference/attention/blocked.hpp"
#include "reference/error/deviations.hpp"
#include "reference/tensors/rounding.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

namespace ringlab::reference::tests {
namespace {

using layouts::Accumulation;
using layouts::DType;

// One rounding to bf16 (8 significant bits) is off by at most 2^-8 of the binade's lower end and evenly distributed, so
// by 2^-8/sqrt(3) in the root mean square. For numbers spread evenly in the logarithm that is 1.53e-3 of their own root
// mean square, and 1.66e-3 taken number by number. Independent roundings add in quadrature.
constexpr double least_rounding = 1.5e-3;
constexpr double most_rounding = 1.7e-3;

bool is_one_rounding(double error) { return least_rounding < error && error < most_rounding; }

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_bf16)

// What the error model's expectations for other policies and numbers of ranks begin with: see error_model_test.cpp.
BOOST_AUTO_TEST_CASE(one_device_has_the_error_of_rounding_p_and_the_output) {
    layouts::Problem problem;
    problem.tokens = 512;
    problem.query_heads = 4;
    problem.kv_heads = 2;
    problem.dtype = DType::bf16;
    auto inputs = random_inputs(problem, 31);
    for (auto* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.dout}) *tensor = rounded(*tensor, DType::bf16);
    const auto expected = blocked_attention(problem, layouts::make_mask("causal", problem.tokens), inputs);
    const auto result =
        run_case({problem, "causal", "zigzag", "ring", 1, Accumulation::carry, DType::fp32}, inputs, CpuOptions{});
    const auto d = deviations(result.outputs, expected);
    const double o = d.o.relative_rms, o_unrounded = deviation("o", result.o_unrounded, expected.o).relative_rms;
    // A p whose score is the running maximum is exactly 1: less than one rounding, more than half of one.
    BOOST_TEST(o_unrounded > least_rounding / 2);
    BOOST_TEST(o_unrounded < most_rounding);
    BOOST_TEST(is_one_rounding(std::sqrt(o * o - o_unrounded * o_unrounded)));
    BOOST_TEST(d.lse.relative_rms < 1e-6);  // fp32 throughout
    // dv rounds p; dq and dk round ds, of which a row's sum is 0: that cancels part of dq and dk, but not of their
    // errors.
    BOOST_TEST(is_one_rounding(d.dv.relative_rms), d.dv.relative_rms);
    for (const auto error : {d.dq.relative_rms, d.dk.relative_rms}) {
        BOOST_TEST(error > least_rounding);
        BOOST_TEST(error < 1.2 * most_rounding);
    }
}

BOOST_AUTO_TEST_CASE(schedules_with_bf16_gradients_agree_on_what_is_rounded) {
    // Parts sent straight home are rounded once each, however many ranks there are.
    const auto problem = [] {
        auto p = small_problem(96);
        p.dtype = DType::bf16;
        return p;
    }();
    const auto inputs = random_inputs(problem, 32);
    // A sample: those by which gradients of K and V travel alone, in parts or in a running sum.
    for (const std::string algorithm : {"all-gather", "pull", "ring", "joined-ring:1"}) {
        GateCase c{problem, "causal", "zigzag", algorithm, 4, Accumulation::carry, DType::fp32};
        const auto wide = run_case(c, inputs, small_tiles()).outputs;
        c.gradient_dtype = DType::bf16;
        const auto narrow = run_case(c, inputs, small_tiles()).outputs;
        const auto d = deviations(narrow, wide);
        BOOST_TEST(d.dq.max_abs == 0);
        // 4 parts, each off by at most 2^-9 of itself, in sums that partly cancel.
        for (const auto& each : {d.dk, d.dv}) {
            BOOST_TEST(each.relative_rms > 1e-4);
            BOOST_TEST(each.relative_rms < 4 * most_rounding);
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
