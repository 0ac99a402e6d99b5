// Decoding over a cache that a padded, sharded prefill left, and what its gate sees.

#include "experiments/study/decoding.hpp"
#include "experiments/inputs/inputs.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/ranks/cpu_backend.hpp"
#include "reference/ranks/transport.hpp"
#include "tests/registered.hpp"
#include "tests/thinning.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::experiments {
namespace {

namespace data = boost::unit_test::data;

Config with_arithmetic(const char* arithmetic, int steps = 9) {
    Config config;
    config.decoding.steps = steps;
    config.problem.heads = "4:2";
    config.problem.head_dim = 16;
    config.problem.arithmetic = arithmetic;
    return config;
}

// 61, 40 and 20 tokens: none of them divides among 4 ranks, and each crosses their borders.
Case decoded(const std::string& layout, const std::string& schedule_name, const std::string& policy = "",
             int rows = 1) {
    return {"normal", "causal", layout, schedule_name, policy, 4, 61, rows, false, 3};
}

reference::CpuRun run_forward(const Plan& plan, const reference::Inputs& inputs, bool round_running_output = false) {
    reference::ThreadWorld world({plan.forward->ranks(), 1});
    reference::CpuOptions options;
    options.round_running_output = round_running_output;
    return reference::run(world, *plan.forward, nullptr, inputs, options);
}

/// The largest error over what is allowed, of o and lse.
double over_tolerance(Decoding& decoding, const Plan& plan, int step, bool round_running_output = false) {
    const auto measured = run_forward(plan, decoding.inputs(), round_running_output).outputs;
    const auto& expected = decoding.expected(step);
    const auto allowed = decoding.tolerance(*plan.forward, step, round_running_output);
    return std::max(reference::deviation("o", measured.o, expected.o).relative_rms / allowed.relative_rms[0],
                    reference::deviation("lse", measured.lse, expected.lse).relative_rms / allowed.relative_rms[2]);
}

Decoding three_sequences(const char* arithmetic) {
    const auto config = with_arithmetic(arithmetic);
    return {config.problem, config.decoding, decoded("", ""), Decoding::Values::made};
}

const ringlab::tests::Names decode_layouts(ringlab::tests::layout_examples);
const ringlab::tests::Names decode_schedules([] {
    return ringlab::tests::schedules_for({.query_heads = 4, .kv_heads = 2}, {4});
});

}  // namespace

BOOST_AUTO_TEST_SUITE(decoding)

BOOST_DATA_TEST_CASE(every_new_token_sees_its_own_sequence_and_nothing_else,
                     data::make(decode_layouts) * data::make(decode_schedules), layout, schedule) {
    if (!ringlab::tests::runs_in_this_build(8)) return;
    auto decoding = three_sequences("fp64");
    BOOST_TEST(decoding.lengths() == (std::vector<std::int64_t>{61, 40, 20}), boost::test_tools::per_element());
    for (int step = 0; step < 9; ++step) {
        decoding.append(step);
        BOOST_TEST(over_tolerance(decoding, decoding.plan(decoded(layout, schedule), step), step) <= 1);
    }
}

// As in speculative decoding: three rows of each sequence, which one rank has although their tokens lie on several.
BOOST_DATA_TEST_CASE(several_new_tokens_see_their_own_sequence_up_to_themselves,
                     data::make(decode_layouts) * data::make(decode_schedules), layout, schedule) {
    if (!ringlab::tests::runs_in_this_build(8)) return;
    const auto config = with_arithmetic("fp64", 3);
    const auto setup = decoded(layout, schedule, "", 3);
    Decoding decoding(config.problem, config.decoding, setup, Decoding::Values::made);
    for (int step = 0; step < 3; ++step) {
        decoding.append(step);
        const auto plan = decoding.plan(setup, step);
        BOOST_TEST(over_tolerance(decoding, plan, step) <= 1);
        for (int rank = 0; rank < 4; ++rank) BOOST_TEST(plan.forward->row_positions(rank).size() % 3 == 0u);
    }
}

BOOST_AUTO_TEST_CASE(lengths_fall_or_are_equal) {
    BOOST_TEST(lengths_of(10, 2, "falling") == (std::vector<std::int64_t>{10, 5}), boost::test_tools::per_element());
    BOOST_TEST(lengths_of(10, 2, "equal") == (std::vector<std::int64_t>{10, 10}), boost::test_tools::per_element());
    BOOST_CHECK_THROW(lengths_of(10, 2, "rising"), std::exception);
    BOOST_CHECK_THROW(lengths_of(1, 2, "falling"), std::exception);
}

BOOST_DATA_TEST_CASE(policies_of_16_bits_stay_within_what_their_roundings_leave,
                     data::make({"carry", "partials", "running"}) * data::make({"merge", "merge:tree", "pass-q"}),
                     policy, schedule) {
    auto decoding = three_sequences("bf16");
    decoding.append(0);
    const auto plan = decoding.plan(decoded("zigzag", schedule, policy), 0);
    BOOST_TEST(over_tolerance(decoding, plan, 0, std::string(policy) == "running") <= 1);
}

// The newest token taken for one earlier, as where its position is counted on one rank; and one that looks at places
// that hold nothing yet.
BOOST_DATA_TEST_CASE(a_position_off_by_one_is_caught, data::make(decode_layouts) * data::make({-1, 1}), layout, by) {
    auto decoding = three_sequences("fp64");
    decoding.append(0);
    auto plan = decoding.plan(decoded(layout, "merge"), 0);
    auto problem = plan.problem;
    for (auto& rows : problem.queries) rows = {rows.begin + by, rows.end + by};
    plan.forward = layouts::make_schedule(problem, plan.mask(), plan.layout(), {.schedule = "merge"});
    const auto measured = run_forward(plan, decoding.inputs()).outputs;
    const auto allowed = decoding.tolerance(*decoding.plan(decoded(layout, "merge"), 0).forward, 0, false);
    BOOST_TEST(reference::deviation("o", measured.o, decoding.expected(0).o).relative_rms >
               1e6 * allowed.relative_rms[0]);
}

// What an appended token wrote would not be seen if it went to another place than its own.
BOOST_AUTO_TEST_CASE(a_token_that_was_never_written_is_caught) {
    auto decoding = three_sequences("fp64");
    decoding.append(1);  // and not step 0 before it
    const auto plan = decoding.plan(decoded("zigzag", "merge:tree"), 1);
    const auto measured = run_forward(plan, decoding.inputs()).outputs;
    auto right = three_sequences("fp64");
    right.append(0);
    right.append(1);
    BOOST_TEST(reference::deviation("o", measured.o, right.expected(1).o).relative_rms > 1e-3);
}

// The prefill's own last row, from which the first new token comes: the last of the sequence, not of a shard or of the
// padding.
BOOST_DATA_TEST_CASE(the_row_of_the_first_token_after_a_padded_prefill_is_the_last_of_the_sequence,
                     data::make(decode_layouts) * data::make(decode_schedules), layout, schedule) {
    if (!ringlab::tests::runs_in_this_build(8)) return;
    layouts::Problem problem{
        .tokens = 61, .query_heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16, .dtype = layouts::DType::fp64};
    auto data = generate_inputs("normal", problem, 3);
    const auto expected = reference::blocked_attention(problem, layouts::make_mask("causal", 61), data.inputs).o;
    const auto plan = make_plan(
        {.mask = "causal", .layout = layout, .schedule = schedule, .ranks = 4, .tokens = 61, .queries = 1, .pad = true},
        problem);
    BOOST_TEST(plan.problem.tokens > 61);
    pad_inputs(data, plan.problem.tokens);
    keep_queries(data, plan.problem.queries);
    const auto o = run_forward(plan, data.inputs).outputs.o;
    BOOST_REQUIRE(o.shape(1) == 1u);
    double largest = 0;
    for (std::size_t h = 0; h < 4; ++h)
        for (std::size_t d = 0; d < 16; ++d)
            largest = std::max(largest, std::abs(o(0, 0, h, d) - expected(0, 60, h, d)));
    BOOST_TEST(largest < 1e-13);  // sums of 61 terms below 3: 61 x 1.1e-16 x 3, with room for exp
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
