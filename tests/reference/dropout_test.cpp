// Dropout in the reference and on CPU ranks: the same pairs for every layout, ring and schedule.
#include "reference/attention/blocked.hpp"
#include "reference/attention/samples.hpp"
#include "reference/error/deviations.hpp"
#include "tests/dropped_pairs.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::reference::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Accumulation;

GateCase telling_case(const std::string& algorithm, const std::string& layout, int ranks) {
    GateCase c{small_problem(48), "causal", layout, algorithm, ranks, Accumulation::carry};
    c.problem.batch = 2;
    c.problem.query_heads = c.problem.kv_heads = 4;
    c.problem.value_dim = c.problem.tokens;
    c.problem.dropout = {0.4, 99};
    return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dropout)

const ringlab::tests::Names schedules([] { return ringlab::tests::schedules_for(telling_case("", "", 1).problem); });

BOOST_DATA_TEST_CASE(every_schedule_and_layout_drops_the_same_pairs_in_both_passes, data::make(schedules), algorithm) {
    ringlab::tests::Combinations combinations;
    for (const int ranks : {1, 2, 4})
        for (const auto& layout : ringlab::tests::layout_examples()) {
            const auto c = telling_case(algorithm, layout, ranks);
            if (!combinations.take(ringlab::tests::suits(c.problem, algorithm, ranks) &&
                                   c.problem.tokens % layouts::layout_granularity(layout, ranks) == 0))
                continue;
            if (!ringlab::tests::runs_in_this_build(4)) continue;
            const auto inputs = ringlab::tests::telling(random_inputs(c.problem, 3));
            BOOST_TEST(ringlab::tests::wrong_pairs(c.problem, run_case(c, inputs, small_tiles()).outputs) == 0,
                       layout << ", " << ranks << " ranks");
        }
}

BOOST_AUTO_TEST_CASE(rows_fewer_than_keys_drop_by_their_position) {
    GateCase c{small_problem(48), "causal", "zigzag", "ring", 4};
    c.problem.queries = {{12, 13}, {37, 45}};
    c.problem.dropout = {0.3, 5};
    const auto inputs = random_inputs(c.problem, 2);
    BOOST_TEST(complaint(run_case(c, inputs, small_tiles()).outputs, expected_of(c, inputs)) == "");
    BOOST_TEST(
        complaint(blocked_attention(c.problem, layouts::make_mask(c.mask, 48), inputs), expected_of(c, inputs)) == "");
}

BOOST_AUTO_TEST_CASE(lse_is_that_of_all_keys_and_o_the_same_on_average) {
    GateCase c{small_problem(48), "full", "contiguous", "ring", 2};
    const auto inputs = random_inputs(c.problem, 2);
    const auto whole = run_case(c, inputs, small_tiles()).outputs;
    Tensor mean(whole.o.shape(), 0.0);
    const int seeds = ringlab::tests::trials_in_this_build(400, 8);
    for (int seed = 0; seed < seeds; ++seed) {
        c.problem.dropout = {0.2, static_cast<std::uint64_t>(seed)};
        const auto out = run_case(c, inputs, {}).outputs;
        BOOST_TEST(deviation("lse", out.lse, whole.lse).max_to_largest < 1e-13);
        mean += out.o / seeds;
    }
    // var(o_d) = p/(1-p) sum_j p_j^2 v_jd^2 of one seed; all rows and dims together 5.5 standard deviations, and no
    // sum_j p_j^2 v^2 is above the largest |v|^2.
    double largest = 0;
    for (const double x : inputs.v) largest = std::max(largest, std::abs(x));
    BOOST_TEST(deviation("o", mean, whole.o).max_abs < 5.5 * std::sqrt(0.25 / seeds) * largest);
}

BOOST_AUTO_TEST_CASE(samples_of_rows_and_columns_are_those_of_the_whole) {
    auto problem = small_problem(60);
    problem.dropout = {0.25, 3};
    const auto mask = layouts::make_mask("window:30,0", 60);
    const auto inputs = random_inputs(problem, 2);
    const auto whole = blocked_attention(problem, mask, inputs);
    const std::vector<std::int64_t> some{0, 3, 17, 44, 59};
    const auto rows = sampled_rows(problem, mask, inputs, some);
    const auto columns = sampled_columns(problem, mask, inputs, some, row_statistics(problem, mask, inputs, some));
    BOOST_TEST(deviation("o", rows.o, take_tokens(whole.o, some)).max_to_largest < 1e-13);
    BOOST_TEST(deviation("dq", rows.dq, take_tokens(whole.dq, some)).max_to_largest < 1e-13);
    BOOST_TEST(deviation("dk", columns.dk, take_tokens(whole.dk, some)).max_to_largest < 1e-13);
    BOOST_TEST(deviation("dv", columns.dv, take_tokens(whole.dv, some)).max_to_largest < 1e-13);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
