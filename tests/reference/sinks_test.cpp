// Learned sink logits in the reference and on CPU ranks.
#include "reference/features/sinks.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/attention/dense.hpp"
#include "reference/attention/samples.hpp"
#include "reference/error/deviations.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::reference::tests {
namespace {

namespace data = boost::unit_test::data;

/// Large and small beside the scores, of which lse is about 3.
const std::vector<double> logits{0.5, -4, 6, 2};

/// K and V with a token more at the end, whose score with every row of a head is the head's logit and whose value is 0:
/// query dim 0 is 1, the new key has the logit there, and no old key anything. With a kv head for each query head.
struct Explicit {
    layouts::Problem problem;
    Inputs inputs;
};
Explicit with_explicit_sinks(const layouts::Problem& problem, const Inputs& inputs) {
    Explicit made{problem, inputs};
    made.problem.sinks.clear();
    made.problem.tokens += 1;
    made.problem.queries = {{0, problem.tokens}};
    for (auto* tensor : {&made.inputs.k, &made.inputs.v}) {
        auto shape = tensor->shape();
        shape[1] += 1;
        Tensor longer(shape, 0.0);
        for (std::size_t t = 0; t < tensor->shape(1); ++t)
            for (std::size_t h = 0; h < shape[2]; ++h)
                for (std::size_t d = 0; d < shape[3]; ++d) longer(0, t, h, d) = (*tensor)(0, t, h, d);
        *tensor = longer;
    }
    for (std::size_t h = 0; h < problem.sinks.size(); ++h)
        made.inputs.k(0, static_cast<std::size_t>(problem.tokens), h, 0) = problem.sinks[h] / problem.effective_scale();
    return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sinks)

// The same function twice: a logit in the sum, and a key that all rows see with that score and the value 0. The
// gradient by the logit is then that of the key's score: dk in dim 0, over the scale.
BOOST_AUTO_TEST_CASE(a_sink_is_a_key_of_that_score_without_a_value) {
    auto problem = small_problem(24);
    problem.kv_heads = problem.query_heads;
    problem.sinks = logits;
    auto inputs = random_inputs(problem, 4);
    for (std::size_t t = 0; t < 24; ++t)
        for (std::size_t h = 0; h < 4; ++h) {
            inputs.q(0, t, h, 0) = 1;
            inputs.k(0, t, h, 0) = 0;
        }
    const auto found = dense_attention<double>(problem, layouts::make_mask("full", 24), inputs);
    const auto other = with_explicit_sinks(problem, inputs);
    const auto expected = dense_attention<double>(other.problem, layouts::make_mask("full", 25), other.inputs);
    BOOST_TEST(deviation("o", found.o, expected.o).max_to_largest < 1e-13);
    BOOST_TEST(deviation("lse", found.lse, expected.lse).max_to_largest < 1e-13);
    for (std::size_t t = 0; t < 24; ++t)
        for (std::size_t h = 0; h < 4; ++h) {
            for (std::size_t d = 0; d < 8; ++d)
                BOOST_TEST(std::abs(found.dk(0, t, h, d) - expected.dk(0, t, h, d)) < 1e-13);
            for (std::size_t d = 1; d < 8; ++d)  // dim 0 meets the new key's logit, which moves q as well
                BOOST_TEST(std::abs(found.dq(0, t, h, d) - expected.dq(0, t, h, d)) < 1e-13);
        }
    for (std::size_t h = 0; h < 4; ++h)
        BOOST_TEST(std::abs(found.dsinks[h] - expected.dk(0, 24, h, 0) / problem.effective_scale()) < 1e-12);
}

BOOST_AUTO_TEST_CASE(a_row_that_sees_nothing_has_its_sink_for_lse) {
    auto problem = small_problem(12);
    problem.sinks = logits;
    const auto inputs = random_inputs(problem, 4);
    const auto mask = layouts::make_mask("causal+valid:4-8", 12);
    for (const auto& found : {dense_attention<double>(problem, mask, inputs), blocked_attention(problem, mask, inputs)})
        for (const std::size_t row : {0, 3, 8, 11})
            for (std::size_t h = 0; h < 4; ++h) {
                BOOST_TEST(found.lse(0, row, h) == logits[h]);
                for (std::size_t d = 0; d < 5; ++d) BOOST_TEST(found.o(0, row, h, d) == 0);
                for (std::size_t d = 0; d < 8; ++d) BOOST_TEST(found.dq(0, row, h, d) == 0);
            }
    // And adds nothing to the gradient: the sum over the four rows that see something is all.
    auto few = problem;
    few.queries = {{4, 8}};
    auto of_few = inputs;
    for (auto* tensor : {&of_few.q, &of_few.dout}) *tensor = take_tokens(*tensor, {4, 5, 6, 7});
    BOOST_TEST(deviation("dsinks", dense_attention<double>(few, mask, of_few).dsinks,
                         dense_attention<double>(problem, mask, inputs).dsinks)
                   .max_to_largest < 1e-13);
}

BOOST_DATA_TEST_CASE(every_schedule_and_layout_equals_dense_attention,
                     ringlab::tests::Names([] { return ringlab::tests::schedules_for(small_problem(8), {4}); }),
                     algorithm) {
    const Sweep sweep{
        .masks = {"causal", "window:8,0", "window:8,0+sink:3", "causal+documents:1,13,7,27", "valid:2-19,23-45"}};
    check_every_layout(algorithm, sweep, [](GateCase& c) {
        c.problem.batch = 2;
        c.problem.sinks = logits;
        if (c.mask == "causal") c.problem.soft_cap = 2.5;
        if (c.mask != "window:8,0") c.problem.dropout = {0.2, 1234567890123};
    });
}

BOOST_AUTO_TEST_CASE(logits_far_above_and_below_all_scores_neither_overflow_nor_count) {
    GateCase c{small_problem(48), "causal", "zigzag", "ring", 4};
    const auto inputs = random_inputs(c.problem, 2);
    const auto without = run_case(c, inputs, small_tiles()).outputs;
    c.problem.sinks = {-1e4, -1e4, 1e4, 1e4};
    const auto found = run_case(c, inputs, small_tiles()).outputs;
    for (std::size_t row = 0; row < 48; ++row)
        for (std::size_t h = 0; h < 4; ++h) {
            BOOST_TEST(found.lse(0, row, h) == (h < 2 ? without.lse(0, row, h) : 1e4));
            for (std::size_t d = 0; d < 5; ++d)
                BOOST_TEST(found.o(0, row, h, d) == (h < 2 ? without.o(0, row, h, d) : 0.0));
        }
    for (const double gradient : found.dsinks) BOOST_TEST(gradient == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
