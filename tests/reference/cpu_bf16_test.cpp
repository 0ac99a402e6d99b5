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

/// 512 tokens, 4:2 heads, D 128, causal, normal inputs that are bf16 numbers already; errors are against fp64.
class Bf16Errors {
public:
    Bf16Errors() {
        problem_.tokens = 512;
        problem_.query_heads = 4;
        problem_.kv_heads = 2;
        problem_.dtype = DType::bf16;
        inputs_ = random_inputs(problem_, 31);
        for (auto* tensor : {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.dout})
            *tensor = rounded(*tensor, DType::bf16);
        expected_ = blocked_attention(problem_, layouts::make_mask("causal", problem_.tokens), inputs_);
    }

    struct Errors {
        double o, o_unrounded, lse, dq, dk, dv;
    };
    Errors of(int ranks, Accumulation accumulation, DType gradient_dtype = DType::fp32,
              bool round_running_output = false) const {
        CpuOptions options;
        options.round_running_output = round_running_output;
        const auto result =
            run_case({problem_, "causal", "zigzag", "ring", ranks, accumulation, gradient_dtype}, inputs_, options);
        const auto d = deviations(result.outputs, expected_);
        return {d.o.relative_rms,   deviation("o", result.o_unrounded, expected_.o).relative_rms,
                d.lse.relative_rms, d.dq.relative_rms,
                d.dk.relative_rms,  d.dv.relative_rms};
    }

private:
    layouts::Problem problem_;
    Inputs inputs_;
    Outputs expected_;
};

// One rounding to bf16 (8 significant bits) is off by at most 2^-8 of the binade's lower end and evenly distributed, so
// by 2^-8/sqrt(3) in the root mean square. For numbers spread evenly in the logarithm that is 1.53e-3 of their own root
// mean square, and 1.66e-3 taken number by number. Independent roundings add in quadrature.
constexpr double least_rounding = 1.5e-3;
constexpr double most_rounding = 1.7e-3;

bool is_one_rounding(double error) { return least_rounding < error && error < most_rounding; }

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_bf16)

BOOST_AUTO_TEST_CASE(one_device_has_the_error_of_rounding_p_and_the_output) {
    const auto one = Bf16Errors().of(1, Accumulation::carry);
    // A p whose score is the running maximum is exactly 1: less than one rounding, more than half of one.
    BOOST_TEST(one.o_unrounded > least_rounding / 2);
    BOOST_TEST(one.o_unrounded < most_rounding);
    BOOST_TEST(is_one_rounding(std::sqrt(one.o * one.o - one.o_unrounded * one.o_unrounded)));
    BOOST_TEST(one.lse < 1e-6);  // fp32 throughout
    // dv rounds p; dq and dk round ds, of which a row's sum is 0: that cancels part of dq and dk, but not of their
    // errors.
    BOOST_TEST(is_one_rounding(one.dv), one.dv);
    for (const auto error : {one.dq, one.dk}) {
        BOOST_TEST(error > least_rounding);
        BOOST_TEST(error < 1.2 * most_rounding);
    }
}

BOOST_AUTO_TEST_CASE(fp32_carry_on_eight_ranks_has_the_error_of_one_device) {
    const Bf16Errors errors;
    const auto one = errors.of(1, Accumulation::carry), eight = errors.of(8, Accumulation::carry);
    // The order of tiles changes which p are exact and how fp32 sums round, nothing else.
    const auto check = [](double a, double b) { BOOST_TEST(std::abs(a / b - 1) < 0.03); };
    check(eight.o, one.o);
    check(eight.o_unrounded, one.o_unrounded);
    check(eight.dq, one.dq);
    check(eight.dk, one.dk);
    check(eight.dv, one.dv);
}

BOOST_AUTO_TEST_CASE(bf16_partials_grow_with_the_number_of_ranks) {
    const Bf16Errors errors;
    double previous = errors.of(1, Accumulation::partials).o;
    // On one rank there is one partial, which is the output.
    BOOST_TEST(std::abs(previous / errors.of(1, Accumulation::carry).o - 1) < 1e-6);
    for (const int ranks : {2, 4, 8}) {
        const auto error = errors.of(ranks, Accumulation::partials).o;
        BOOST_TEST(error > previous);
        previous = error;
    }
    const auto carry = errors.of(8, Accumulation::carry), partials = errors.of(8, Accumulation::partials);
    BOOST_TEST(partials.o > 1.05 * carry.o);
    // One rounding more at most: rounded partials are averaged by their weights.
    BOOST_TEST(partials.o < std::hypot(carry.o, most_rounding));
    // delta comes from the merged output, and brings its rounding into dq and dk.
    BOOST_TEST(partials.dq > 1.05 * carry.dq);
    BOOST_TEST(partials.dk > 1.05 * carry.dk);
}

BOOST_AUTO_TEST_CASE(a_running_output_in_bf16_is_worse_than_bf16_partials) {
    const Bf16Errors errors;
    const auto partials = errors.of(8, Accumulation::partials);
    const auto running = errors.of(8, Accumulation::partials, DType::fp32, true);
    BOOST_TEST(running.o > 1.08 * partials.o);
    BOOST_TEST(std::abs(running.o / running.o_unrounded - 1) < 1e-6);  // it is rounded already
}

BOOST_AUTO_TEST_CASE(gradients_that_travel_in_bf16_lose_with_every_hop) {
    const Bf16Errors errors;
    const auto wide = errors.of(8, Accumulation::carry);
    auto previous = wide;
    for (const int ranks : {2, 4, 8}) {
        const auto narrow = errors.of(ranks, Accumulation::carry, DType::bf16);
        BOOST_TEST(narrow.dk > 1.1 * previous.dk);
        BOOST_TEST(narrow.dv > 1.1 * previous.dv);
        BOOST_TEST(std::abs(narrow.dq / wide.dq - 1) < 0.03);  // dq stays at home
        previous = narrow;
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
