#include "sim/tiles/kernels.hpp"
#include "layouts/layouts/launch_order.hpp"
#include "scenario.hpp"
#include "sim/cost/cost.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;
using ringlab::layouts::Problem;

namespace {

/// A machine whose own kernel is of dims 128, with others beside it; a full tile takes so many microseconds.
Machine machine_with_kernels() {
    auto machine = busy_machine();
    const auto cost = [&](std::int64_t head, std::int64_t value, double full_us) {
        auto one = machine.forward;
        one.head_dim = head;
        one.value_dim = value;
        one.full_tile_seconds = full_us * 1e-6;
        one.flops = std::numeric_limits<double>::infinity();  // says nothing of tiles
        return one;
    };
    machine.forward = machine.backward = cost(128, 128, 4);
    for (const auto& [name, head, value, scores, us] : {std::tuple{"d64", 64, 64, Scores::plain, 3.0},
                                                        {"d192_128", 192, 128, Scores::plain, 5.0},
                                                        {"d256", 256, 256, Scores::plain, 9.0},
                                                        {"d128_capped", 128, 128, Scores::capped, 11.0}})
        machine.kernels.push_back({name, scores, cost(head, value, us), cost(head, value, us)});
    return machine;
}

Problem problem_of(std::int64_t head, std::int64_t value, double soft_cap = 0) {
    Problem problem;
    problem.head_dim = head;
    problem.value_dim = value;
    problem.soft_cap = soft_cap;
    return problem;
}

std::unique_ptr<Schedule> schedule_of(const Problem& dims) {
    auto problem = dims;
    problem.tokens = 1024;
    return test::schedule_of(problem, "causal", "contiguous", 1);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kernels)

BOOST_AUTO_TEST_CASE(a_problem_has_the_smallest_kernel_that_holds_its_dims_and_does_its_scores) {
    const auto machine = machine_with_kernels();
    for (const auto& [head, value, cap, full_us] : {std::tuple{64, 64, 0.0, 3.0},
                                                    {40, 64, 0.0, 3.0},
                                                    {80, 64, 0.0, 4.0},
                                                    {128, 128, 0.0, 4.0},
                                                    {160, 128, 0.0, 5.0},
                                                    {192, 192, 0.0, 9.0},
                                                    {256, 256, 0.0, 9.0},
                                                    {128, 128, 30.0, 11.0},
                                                    {64, 64, 30.0, 11.0}}) {
        const auto price = kernel_price(machine, Pass::forward, problem_of(head, value, cap));
        BOOST_TEST(price.fits_dims);
        BOOST_TEST(price.fits_scores);
        BOOST_TEST(price.cost->full_tile_seconds == full_us * 1e-6, head << "/" << value << ", cap " << cap);
    }
}

BOOST_AUTO_TEST_CASE(dims_that_a_kernel_fills_up_take_what_its_own_take) {
    const auto machine = machine_with_kernels();
    BOOST_TEST(tile_time_factor(machine, *schedule_of(problem_of(96, 96))) == 1);
    BOOST_TEST(notes_of_kernel(machine, *schedule_of(problem_of(96, 96))).empty());
    auto alone = machine;
    alone.kernels.clear();
    BOOST_TEST(tile_time_factor(alone, *schedule_of(problem_of(96, 96))) == 96.0 / 128);
    BOOST_TEST(notes_of_kernel(alone, *schedule_of(problem_of(96, 96))).size() == 1u);
    // The tile model does both.
    const auto seconds = [&](const Machine& on, std::int64_t dim) {
        const auto schedule = schedule_of(problem_of(dim, dim));
        return TileModel(*schedule, on).attend(schedule->part(0, {0, 1}), schedule->part(0, {0, 1}), {}).alone;
    };
    BOOST_TEST(seconds(machine, 96) == seconds(machine, 128));
    BOOST_TEST(seconds(alone, 96) < seconds(alone, 128));
}

BOOST_AUTO_TEST_CASE(a_soft_cap_without_a_price_is_said) {
    auto machine = machine_with_kernels();
    const auto capped = schedule_of(problem_of(256, 256, 50));
    const auto notes = notes_of_kernel(machine, *capped);
    BOOST_TEST_REQUIRE(notes.size() == 1u);
    BOOST_TEST(notes[0].find("no kernel with a soft cap for head and value dims 256 and 256") != std::string::npos,
               notes[0]);
    BOOST_TEST(kernel_price(machine, Pass::forward, capped->problem()).cost->full_tile_seconds == 9e-6);
    BOOST_TEST(notes_of_kernel(machine, *schedule_of(problem_of(128, 128, 50))).empty());
    machine.kernels.clear();
    BOOST_TEST(notes_of_kernel(machine, *schedule_of(problem_of(128, 128, 50))).size() == 1u);
}

// Half of the rows see half of the keys: of 4 query heads O in fp32 (64 KiB) and Q (32), of 2 kv heads K and V (32).
BOOST_AUTO_TEST_CASE(keys_that_nobody_sees_take_no_room_in_the_cache) {
    const auto schedule =
        Scenario{.ranks = 2, .tokens_per_rank = 64, .layout = "contiguous", .mask = "window:32,0"}.schedule();
    auto machine = busy_machine();
    machine.forward.tail_seconds_per_byte = 1e-6;
    const auto seconds = [&](double kibibytes) {
        machine.cache_bytes = kibibytes * 1024;
        return TileModel(*schedule, machine)
            .attend(schedule->part(1, {0, 4}), schedule->part(0, {0, 2}), {false, false})
            .alone;
    };
    BOOST_TEST(seconds(2 * 128) == seconds(1e6));  // half of the cache
    BOOST_TEST(seconds(2 * 127) > seconds(1e6));
}

// Half of the rows see nothing of the block: 2 of 4 query tiles have tiles, of 4 heads, on 16 SMs.
BOOST_AUTO_TEST_CASE(what_the_cache_does_not_hold_makes_the_end_of_a_launch_longer) {
    const auto schedule =
        Scenario{.ranks = 2, .tokens_per_rank = 64, .layout = "contiguous", .mask = "window:32,0"}.schedule();
    auto machine = busy_machine();
    const auto seconds = [&](TileModel::AttendPosition turn) {
        return TileModel(*schedule, machine).attend(schedule->part(1, {0, 4}), schedule->part(0, {0, 2}), turn).alone;
    };
    for (const auto& [turn, read, written, units] :
         {std::tuple{TileModel::AttendPosition{true, false}, 0.0, 4.0, 16.0},
          {TileModel::AttendPosition{false, false}, 4.0, 4.0, 8.0},  // of those with tiles alone
          {TileModel::AttendPosition{true, true}, 0.0, 6.0, 16.0},   // in 16 bits as well
          {TileModel::AttendPosition{false, true}, 4.0, 6.0, 16.0}}) {
        machine.cache_bytes = 0;
        machine.forward.tail_seconds_per_byte = 0;
        const auto before = seconds(turn);
        machine.forward.tail_seconds_per_byte = 1e-6;
        BOOST_TEST(seconds(turn) == before);  // nothing is known of a cache
        machine.cache_bytes = 1e9;
        BOOST_TEST(seconds(turn) == before);
        machine.cache_bytes = 1;
        BOOST_TEST(seconds(turn) - before == 1e-6 * (read + written) * units / 16, boost::test_tools::tolerance(1e-9));
    }
}

BOOST_AUTO_TEST_SUITE_END()
