#include "sim/machine/terms.hpp"

#include "layouts/basics/require.hpp"
#include "layouts/schedules/schedule.hpp"
#include "scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <map>

using namespace ringlab;
using namespace ringlab::sim;

namespace {

/// All figures of a machine, as a file; where they come from does not matter here.
std::string text_of(const Machine& machine) {
    std::map<std::string, std::string> sources{{"kernels", "this test"}, {"dropout", "this test"}};
    for (const auto& figure : machine.figures) sources[figure.name.substr(0, figure.name.find('.'))] = "this test";
    return machine_text(machine, sources, "");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(terms_of_the_cost_model)

// These machine files hold every key of the model together, so a term that removes nothing from any of them has been
// written for a key that is not there.
BOOST_AUTO_TEST_CASE(each_term_takes_something_from_a_calibrated_machine_and_is_taken_once) {
    for (const auto& term : terms_to_remove()) {
        BOOST_TEST_CONTEXT(term.name) {
            bool changes = false;
            for (const auto* name : {"2xh200_calibrated", "2xh200_calibrated_nccl", "h200_nvswitch_nccl"}) {
                const auto whole = test::shipped_machine(name);
                auto without = whole;
                term.remove(without);
                const auto once = text_of(without);
                changes |= once != text_of(whole);
                term.remove(without);
                BOOST_TEST(text_of(without) == once);
            }
            BOOST_TEST(changes);
        }
    }
}

// Launch overhead is paid for each attend of a rank: 2 ranks, 2 attends each, on a machine where nothing else costs
// anything but the tiles.
BOOST_AUTO_TEST_CASE(without_launches_a_pass_is_shorter_by_the_launches_of_a_rank) {
    Machine machine;
    machine.sms = 1;
    for (auto* cost : {&machine.forward, &machine.backward}) {
        cost->launch_seconds = 1e-3;
        cost->full_tile_seconds = cost->partial_tile_seconds = 1e-3;
    }
    layouts::Problem problem;
    problem.tokens = 512;
    const auto schedule = test::schedule_of(problem, "full", "contiguous", 2);
    const auto with = simulate(*schedule, machine, {}).makespan;
    find_term("launch").remove(machine);
    BOOST_TEST(with - simulate(*schedule, machine, {}).makespan == 2 * layouts::Picoseconds{1'000'000'000});
}

BOOST_AUTO_TEST_CASE(an_unknown_term_is_refused_with_the_known_ones) {
    BOOST_CHECK_EXCEPTION(find_term("lunch"), Error, [](const Error& error) {
        const std::string text = error.what();
        return text.starts_with("unknown term of the cost model 'lunch'; known: launch, work-tile, ");
    });
}

BOOST_AUTO_TEST_SUITE_END()
