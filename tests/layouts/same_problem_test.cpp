#include "layouts/schedules/same_problem.hpp"
#include "tests/layouts/cases.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>

using namespace ringlab::layouts;

namespace {

struct Work {
    Problem problem{.tokens = 48, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
    std::string mask = "causal", layout = "zigzag";
    int ranks = 4;
};

std::unique_ptr<Schedule> schedule_of(const Work& work, Pass pass) {
    const auto mask = make_mask(work.mask, work.problem.tokens);
    return make_schedule(work.problem, mask, make_layout(work.layout, mask, work.ranks), {.pass = pass});
}

/// The error where `change` is made to the backward pass alone.
std::string said_of(const std::function<void(Work&)>& change) {
    Work work;
    const auto forward = schedule_of(work, Pass::forward);
    change(work);
    return testing::error_of([&] { require_same_problem(*forward, *schedule_of(work, Pass::backward)); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(same_work)

BOOST_AUTO_TEST_CASE(passes_of_one_problem_mask_and_layout_go_together) {
    BOOST_TEST(said_of([](Work&) {}) == "(no error)");
    BOOST_TEST(said_of([](Work& work) { work.problem.scale = work.problem.effective_scale(); }) == "(no error)");
}

BOOST_AUTO_TEST_CASE(passes_that_differ_are_refused_with_what_differs) {
    const std::string problems = "the forward and the backward schedule have different problems; they must be the same";
    BOOST_TEST(said_of([](Work& work) { work.problem.kv_heads = 4; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.problem.soft_cap = 5; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.problem.dtype = DType::fp16; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.problem.dropout = {.probability = 0.1}; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.problem.rotary.base = 100; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.problem.queries = {{40, 48}}; }) == problems);
    BOOST_TEST(said_of([](Work& work) { work.ranks = 2; }) ==
               "the forward schedule has layout zigzag over 4 ranks, the backward schedule zigzag over 2; they must be "
               "the same");
    BOOST_TEST(
        said_of([](Work& work) { work.layout = "striped"; }) ==
        "the forward schedule has layout zigzag over 4 ranks, the backward schedule striped over 4; they must be "
        "the same");
    BOOST_TEST(said_of([](Work& work) { work.mask = "full"; }) ==
               "the forward schedule has mask causal, the backward schedule full; they must be the same");
}

BOOST_AUTO_TEST_SUITE_END()
