// Learned sink logits on a device.

#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/executor_case.hpp"
#include "tests/registered.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Accumulation;
using layouts::DType;

layouts::Problem sink_problem() {
    auto p = small_problem();
    p.sinks = {0.5, -4, 9, 3};
    return p;
}

const Names sink_schedules([] { return schedules_for(sink_problem(), {1, 4}); });

}  // namespace

BOOST_AUTO_TEST_SUITE(sinks_on_gpu, *boost::unit_test::precondition(has_gpu))

// Masks and layouts take turns.
BOOST_DATA_TEST_CASE(every_schedule_agrees_with_the_reference, data::make(sink_schedules), schedule) {
    const std::vector<std::string> masks{"causal", "window:40,0", "window:31,17+valid:100-200"};
    const auto number = sink_schedules.place_of(schedule);
    Combinations combinations;
    for (const int ranks : {1, 4}) {
        if (!combinations.take(suits(sink_problem(), schedule, ranks))) continue;
        const auto turn = number + static_cast<std::size_t>(ranks);
        RingCase c{sink_problem(), masks[turn % masks.size()], layout_in_turn(turn), schedule, ranks};
        c.options.repeats = 2;  // each from o as attends leave it
        agrees_with_the_reference(c);
        c = {sink_problem(), "causal", "zigzag", schedule, ranks};
        if (turn % 2 == 0) {
            c.accumulation = Accumulation::partials;
            c.gradient_dtype = DType::bf16;
        } else {
            c.problem.dropout = {0.2, 4};
            c.problem.soft_cap = 20;
        }
        agrees_with_the_reference(c);
    }
}

BOOST_DATA_TEST_CASE(every_dim_agrees_with_the_reference,
                     data::make({64, 128, 192, 256, 40, 33}) * data::make({DType::bf16, DType::fp16}), head_dim,
                     dtype) {
    auto p = sink_problem();
    p.batch = 2;
    p.tokens = 390;
    p.head_dim = head_dim;
    p.value_dim = head_dim == 192 ? 128 : head_dim;
    p.dtype = dtype;
    agrees_with_the_reference({p, "causal+documents:111,200,79", "zigzag", "ring", 3});
}

BOOST_DATA_TEST_CASE(rounded_results_are_the_fp32_ones_rounded_with_sinks_too,
                     data::make(sink_schedules) * data::make({1, 4}), schedule, ranks) {
    if (!suits(sink_problem(), schedule, ranks)) return;
    RingCase c{sink_problem(), "causal", "zigzag", schedule, ranks};
    c.options.deterministic = true;
    const auto inputs = host_inputs(c.problem, 5);
    const auto exact = run_case(c, inputs).outputs;
    c.options.round_results = true;
    c.options.repeats = 3;
    const auto rounded = run_case(c, inputs).outputs;
    check_identical(rounded, in_bf16(exact));
    BOOST_TEST(rounded.dsinks == exact.dsinks, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(logits_far_below_all_scores_change_no_bit_and_far_above_leave_nothing) {
    RingCase c{small_problem(), "causal", "zigzag", "ring", 4};
    const auto inputs = host_inputs(c.problem, 5);
    c.options.deterministic = true;
    const auto without = run_case(c, inputs).outputs;
    c.problem.sinks.assign(4, -1e4);
    auto with = run_case(c, inputs).outputs;
    for (const double gradient : with.dsinks) BOOST_TEST(gradient == 0);
    check_identical(with, without);
    c.problem.sinks.assign(4, 1e4);
    with = run_case(c, inputs).outputs;
    for (const float o : with.o.values) BOOST_TEST_REQUIRE(o == 0);
    for (const float lse : with.lse.values) BOOST_TEST_REQUIRE(lse == 1e4f);
    for (const float dv : with.dv.values) BOOST_TEST_REQUIRE(dv == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::tests
