#include "reference/features/latent.hpp"

#include "reference/attention/dense.hpp"
#include "tests/error_of.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>

namespace ringlab::reference::tests {
namespace {

namespace data = boost::unit_test::data;

/// 4 heads of 5 own dims and 3 shared ones, values of 5, all of 6 numbers and those 3; two of these are rotated.
layouts::Problem latent_problem(std::int64_t tokens) {
    auto problem = small_problem(tokens);
    problem.kv_heads = problem.query_heads;
    problem.latent = {.rank = 6, .shared = 3};
    problem.rotary = {.base = 20, .dims = 2, .first = 6, .pairs = layouts::Rotary::Pairs::interleaved};
    return problem;
}

std::string complaint_of_latent(const GateCase& c) {
    const auto inputs = random_inputs(c.problem, 9);
    return complaint_of_run([&] { return run_case(c, inputs, small_tiles()).outputs; }, expected_of(c, inputs));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(latent)

BOOST_AUTO_TEST_CASE(keys_and_values_are_what_the_definition_says) {
    auto problem = latent_problem(7);
    problem.batch = 2;
    const auto inputs = random_inputs(problem, 1);
    const auto heads = expanded(problem, inputs);
    require_inputs(problem.expanded(), layouts::make_mask("full", 7), heads);
    for (std::size_t b = 0; b < 2; ++b)
        for (std::size_t t = 0; t < 7; ++t)
            for (std::size_t h = 0; h < 4; ++h)
                for (std::size_t row = 0; row < 10; ++row) {
                    double sum = 0;
                    for (std::size_t r = 0; r < 6; ++r) sum += inputs.v(0, h, row, r) * inputs.k(b, t, 0, r);
                    const double made = row < 5 ? heads.k(b, t, h, row) : heads.v(b, t, h, row - 5);
                    BOOST_TEST(std::abs(made - sum) < 1e-14);
                    if (row < 3) BOOST_TEST(heads.k(b, t, h, 5 + row) == inputs.k(b, t, 0, 6 + row));
                }
}

BOOST_AUTO_TEST_CASE(gradients_are_those_of_the_latent_and_its_matrices) {
    const GateCase c{latent_problem(12), "causal+documents:5,7", "zigzag", "ring", 2};
    const auto inputs = random_inputs(c.problem, 2);
    const auto found = run_case(c, inputs, small_tiles()).outputs;
    BOOST_TEST((found.dk.shape() == inputs.k.shape()));
    BOOST_TEST((found.dv.shape() == inputs.v.shape()));
    check_gradient(c, inputs, &Inputs::q, found.dq, 7);
    check_gradient(c, inputs, &Inputs::k, found.dk, 7);
    check_gradient(c, inputs, &Inputs::v, found.dv, 7);
}

const ringlab::tests::Names schedules([] { return ringlab::tests::schedules_for(latent_problem(8)); });

BOOST_DATA_TEST_CASE(it_travels_in_every_schedule_that_sends_keys_and_values, data::make(schedules), algorithm) {
    const Sweep sweep{.ranks = {1, 2, 4, 8},
                      .masks = {"causal", "causal+documents:7,21,20", "window:9,3+documents:29,19"}};
    check_every_layout(algorithm, sweep, [](GateCase& c) {
        c.problem = latent_problem(48);
        c.problem.batch = c.ranks == 4 ? 2 : 1;
    });
}

BOOST_DATA_TEST_CASE(few_query_rows_attend_to_what_it_is_expanded_to, data::make(schedules), algorithm) {
    const Sweep sweep{.ranks = {2, 3, 4}, .masks = {"causal+documents:7,21,20"}};
    check_every_layout(algorithm, sweep, [](GateCase& c) {
        c.problem = latent_problem(48);
        c.problem.queries = {{6, 7}, {25, 28}, {47, 48}};
    });
}

BOOST_AUTO_TEST_CASE(it_need_not_share_anything_nor_be_rotated) {
    GateCase c{latent_problem(48), "causal", "zigzag", "ring", 4};
    c.problem.rotary = {};
    BOOST_TEST(complaint_of_latent(c) == "");
    c.problem.latent.shared = 0;
    BOOST_TEST(complaint_of_latent(c) == "");
}

BOOST_AUTO_TEST_CASE(what_makes_no_sense_is_refused_in_one_line) {
    const auto refusal = [](auto change) {
        GateCase c{latent_problem(48), "causal", "contiguous", "ring", 4};
        change(c);
        return ringlab::tests::error_of([&] { schedule_of(c, layouts::Pass::forward)->ops(0).next(); });
    };
    for (const std::string algorithm : {"pass-q", "merge", "merge:tree"})
        BOOST_TEST(refusal([&](GateCase& c) { c.algorithm = algorithm; }).find("give expanded:" + algorithm) !=
                   std::string::npos);
    BOOST_TEST(refusal([](GateCase& c) { c.algorithm = "all-gather:2"; }).find("2 head groups of 1 kv heads") !=
               std::string::npos);
    BOOST_TEST(refusal([](GateCase& c) { c.algorithm = "expanded"; }).find("expanded:ring") != std::string::npos);
    BOOST_TEST(refusal([](GateCase& c) {
                   c.algorithm = "expanded:ring", c.problem.latent = {}, c.problem.rotary = {};
               }).find("is for problems with a latent") != std::string::npos);
    BOOST_TEST(refusal([](GateCase& c) { c.problem.latent.shared = 8; }).find("must be fewer") != std::string::npos);
    BOOST_TEST(refusal([](GateCase& c) { c.problem.kv_heads = 2; }).find("say 4:4") != std::string::npos);
    BOOST_TEST(refusal([](GateCase& c) { c.problem.rotary.first = 4; }).find("first:5") != std::string::npos);
    BOOST_TEST(refusal([](GateCase& c) { c.algorithm = "expanded:pull"; }).find("give pull") != std::string::npos);
    for (const auto* spec : {"", "0+64", "512+", "+64", "512-64", "x"})
        BOOST_CHECK_THROW(layouts::parse_latent(spec), Error);
    BOOST_TEST((layouts::parse_latent("512+64") == layouts::Latent{512, 64}));
    BOOST_TEST((layouts::parse_latent("512") == layouts::Latent{512, 0}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
