#include "reference/features/rotary.hpp"

#include "reference/attention/samples.hpp"
#include "reference/error/deviations.hpp"
#include "reference/ranks/transport.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>

namespace ringlab::reference::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Rotary;

/// Small bases: with 8 dims all pairs turn visibly within 48 tokens.
Rotary half_of_the_dims() { return {.base = 20, .dims = 4, .first = 2, .pairs = Rotary::Pairs::interleaved}; }
Rotary by_document_and_yarn() {
    return {.base = 50,
            .positions = Rotary::Positions::documents,
            .scaling = layouts::parse_rotary_scaling("yarn:4,16,3,0.5")};
}

double dot(const Tensor& x, const Tensor& y) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += x.data()[i] * y.data()[i];
    return sum;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rotary)

const ringlab::tests::Names schedules([] { return ringlab::tests::schedules_for(small_problem(8)); });

BOOST_DATA_TEST_CASE(every_layout_and_schedule_rotates_by_global_position, data::make(schedules), algorithm) {
    const Sweep sweep{.ranks = {1, 2, 4, 8},
                      .masks = {"causal+documents:7,21,20", "window:9,3+documents:29,19"},
                      .accumulations = {layouts::Accumulation::carry}};
    for (const auto& rotary : {half_of_the_dims(), by_document_and_yarn()})
        check_every_layout(algorithm, sweep, [&](GateCase& c) { c.problem.rotary = rotary; });
}

BOOST_DATA_TEST_CASE(few_query_rows_rotate_by_their_own_positions, data::make(schedules), algorithm) {
    const Sweep sweep{.ranks = {2, 3, 4}, .masks = {"causal+documents:7,21,20"}};
    check_every_layout(algorithm, sweep, [](GateCase& c) {
        c.problem.rotary = by_document_and_yarn();
        c.problem.queries = {{6, 7}, {25, 28}, {47, 48}};
    });
}

BOOST_AUTO_TEST_CASE(rings_that_are_not_the_world_rotate_by_global_position_too) {
    using Placement = layouts::RingGroup::Placement;
    for (const auto placement : {Placement::consecutive, Placement::strided}) {
        GateCase c{small_problem(48), "causal", "zigzag", "ring", 3};
        c.problem.rotary = half_of_the_dims();
        ThreadWorld world({3, 2, placement});
        const auto forward = schedule_of(c, layouts::Pass::forward), backward = schedule_of(c, layouts::Pass::backward);
        const std::vector<Inputs> inputs{random_inputs(c.problem, 3), random_inputs(c.problem, 4)};
        const auto runs = run(world, *forward, backward.get(), inputs, small_tiles());
        for (std::size_t replica = 0; replica < 2; ++replica)
            BOOST_TEST(complaint(runs[replica].outputs, expected_of(c, inputs[replica])) == "");
    }
}

BOOST_AUTO_TEST_CASE(gradients_are_those_of_q_and_k_before_they_are_rotated) {
    GateCase c{small_problem(12), "causal+documents:5,7", "zigzag", "ring", 2};
    c.problem.rotary = by_document_and_yarn();
    const auto inputs = random_inputs(c.problem, 2);
    const auto found = run_case(c, inputs, small_tiles()).outputs;
    check_gradient(c, inputs, &Inputs::q, found.dq, 29);
    check_gradient(c, inputs, &Inputs::k, found.dk, 29);
}

BOOST_AUTO_TEST_CASE(scores_depend_on_how_far_apart_tokens_are) {
    auto problem = small_problem(64);
    problem.rotary.base = 10000;
    const auto mask = layouts::make_mask("full", 64);
    Tensor rows({1, 64, 1, 8});
    for (std::size_t t = 0; t < 64; ++t)
        for (std::size_t d = 0; d < 8; ++d) rows(0, t, 0, d) = std::sin(static_cast<double>(d) + 1);
    const auto all = rotated(rows, problem, mask, Rotation::Way::ahead);
    const auto product = [&](std::size_t a, std::size_t b) {
        double sum = 0;
        for (std::size_t d = 0; d < 8; ++d) sum += all(0, a, 0, d) * all(0, b, 0, d);
        return sum;
    };
    for (std::size_t shift = 1; shift < 50; ++shift) {
        BOOST_TEST(product(3, 11) == product(3 + shift, 11 + shift), boost::test_tools::tolerance(1e-12));
        BOOST_TEST(std::abs(product(3, 11) - product(3, 11 + shift)) > 1e-4);
    }
}

BOOST_AUTO_TEST_CASE(a_turn_back_is_the_transpose_and_can_be_undone) {
    auto problem = small_problem(9);
    problem.rotary = by_document_and_yarn();
    const auto mask = layouts::make_mask("documents:4,5", 9);
    const auto a = random_inputs(problem, 6).q, b = random_inputs(problem, 7).q;
    using Way = Rotation::Way;
    const auto whole = rotated(a, problem, mask, Way::ahead);
    BOOST_TEST(dot(whole, b) == dot(a, rotated(b, problem, mask, Way::back)), boost::test_tools::tolerance(1e-12));
    const auto again = rotated(rotated(b, problem, mask, Way::back), problem, mask, Way::inverse_of_back);
    BOOST_TEST(deviation("b", again, b).max_to_largest < 1e-14);

    // Some tokens as all of them.
    const std::vector<std::int64_t> tokens{2, 8};
    const auto part = rotated(take_tokens(a, tokens), problem, mask, Way::ahead, tokens);
    BOOST_TEST((part == take_tokens(whole, tokens)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
