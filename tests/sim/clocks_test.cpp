// Clocks that power allows, GPU by GPU.

#include "sim/play/clocks.hpp"
#include "sim/cost/cost.hpp"
#include "tests/sim/scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

namespace ringlab::sim {
namespace {

using layouts::RankTotals;

constexpr Picoseconds second = 1'000'000'000'000;

/// Ranks that compute for so many seconds of a pass of one.
Prediction one_second(std::initializer_list<double> computing) {
    Prediction prediction;
    prediction.makespan = second;
    for (const auto seconds : computing) {
        RankTotals totals;
        totals.compute = static_cast<Picoseconds>(seconds * static_cast<double>(second));
        prediction.ranks.push_back(totals);
    }
    return prediction;
}

const auto close = boost::test_tools::tolerance(1e-9);

}  // namespace

BOOST_AUTO_TEST_SUITE(clocks)

// A pass of one second at clock 1 takes 1 / c at clock c, and energy as flop x c^2: c^3 = power / flop.
BOOST_AUTO_TEST_CASE(a_gpu_that_never_rests_runs_at_the_third_root_of_its_power) {
    const std::vector<double> before{1}, flop{1}, power{0.125};
    BOOST_TEST(clocks_within_power(one_second({1}), before, flop, power, {}).front() == 0.5, close);
}

// The pass lasts 2.5 s, which the GPU with less power takes at 0.4 (0.4^3 = 0.064); the other may use up its power in
// as long: c^2 / 0.125 = 2.5.
BOOST_AUTO_TEST_CASE(who_waits_for_a_slower_gpu_has_power_to_spare) {
    const std::vector<double> before{1, 1}, flop{1, 1}, powers{0.125, 0.064};
    const auto found = clocks_within_power(one_second({1, 1}), before, flop, powers, {});
    BOOST_TEST(found[1] == 0.4, close);
    BOOST_TEST(found[0] == std::sqrt(2.5 * 0.125), close);
}

// A quarter of the work: the pass lasts 2 s for the other, c^2 / 4 / 0.125 = 2 at clock 1.
BOOST_AUTO_TEST_CASE(who_has_little_to_compute_runs_at_its_full_clock) {
    const std::vector<double> before{1, 1}, flop{1, 0.25}, powers{0.125, 0.125};
    const auto found = clocks_within_power(one_second({1, 0.25}), before, flop, powers, {});
    BOOST_TEST(found[0] == 0.5, close);
    BOOST_TEST(found[1] == 1, close);
}

BOOST_AUTO_TEST_CASE(the_power_of_each_gpu_of_the_machine_sets_the_clock_of_its_rank) {
    const test::Scenario scenario{.ranks = 2, .mask = "full"};
    const auto schedule = scenario.schedule();
    auto machine = test::pair_machine(scenario);
    machine.gpus_per_host = machine.nics_per_host = 2;
    auto options = test::rate_options();
    options.clock = Clock::sustained;
    // Both have as much to do, at machine.forward.flops without a rest.
    machine.forward.power_flops = machine.forward.flops;
    BOOST_TEST(simulate(*schedule, machine, options).clock == 1, close);
    machine.power_of_gpus = {1, 0.512};
    const auto slower = simulate(*schedule, machine, options);
    BOOST_TEST(slower.clock == 0.8, boost::test_tools::tolerance(1e-3));
    BOOST_TEST(slower.ranks[1].compute > slower.ranks[0].compute);
    options.placement = {1, 0};
    const auto swapped = simulate(*schedule, machine, options);
    BOOST_TEST(swapped.ranks[0].compute == slower.ranks[1].compute);
}

// Of 4 x 4 tiles of 16 x 16 pairs 10 meet the triangle of 64 x 65 / 2 pairs that are seen. A kernel of few rows is not
// bound by power, and the rate model knows no tiles.
BOOST_AUTO_TEST_CASE(pairs_that_a_tile_hides_take_power_like_those_that_are_seen) {
    const auto schedule = test::Scenario{.ranks = 1, .tokens_per_rank = 64, .layout = "contiguous"}.schedule();
    auto ops = schedule->ops(0);
    const auto attend = *ops.next();
    BOOST_TEST_REQUIRE((attend.kind == layouts::OpKind::attend));
    Machine machine;
    machine.forward.tile_rows = machine.forward.tile_keys = 16;
    SimOptions options;
    const auto ratio = [&] {
        return CostModel(*schedule, machine, options).computed_flop(attend) / schedule->flop(attend);
    };
    BOOST_TEST(ratio() == 10.0 * 16 * 16 / (64 * 65 / 2), close);
    machine.split_kv.rows = 64;
    BOOST_TEST(ratio() == 1);
    machine.split_kv.rows = 0;
    options.compute = ComputeModel::rate;
    BOOST_TEST(ratio() == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
