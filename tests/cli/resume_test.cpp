#include "process.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <random>

namespace ringlab::cli::test {
namespace {

const auto sweep = words_of(
    "--tokens 64 --layouts contiguous zigzag striped --masks causal full --ranks 1 2 4 --schedules ring pull --resume "
    "-o r.h5");
constexpr std::size_t sweep_runs = 3 * 2 * 3 * 2;

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_resume)

// By hand with more kills: RINGLAB_TEST_KILLS=200 test_cli --run_test=cli_resume. A sweep that is done begins anew.
BOOST_AUTO_TEST_CASE(killed_at_random_moments_a_sweep_keeps_its_finished_runs_and_ends_as_if_never_killed) {
    const Folder uninterrupted;
    const auto whole = run(uninterrupted, gradient_equivalence, sweep);
    BOOST_REQUIRE(whole.status == 0);
    const auto expected = runs_of(uninterrupted / "r.h5", "judged/relative_rms");
    BOOST_REQUIRE(expected.size() == sweep_runs);

    const Folder folder;
    const auto is_complete = [&] {
        // fp64 sums in the order that each rank's schedule fixes: threads or not, the same numbers.
        BOOST_TEST((runs_of(folder / "r.h5", "judged/relative_rms") == expected));
        BOOST_TEST(folder.left() == Words{"r.h5"}, boost::test_tools::per_element());
    };
    const char* given = std::getenv("RINGLAB_TEST_KILLS");
    const int kills = given ? std::atoi(given) : 8;
    // Each kill comes within the time that a quarter of the sweep takes, so that several go by before it is done.
    std::mt19937 random(1);
    std::uniform_real_distribution<double> moment(0.01, 0.01 + whole.seconds / 4);
    std::map<std::string, std::vector<double>> finished;
    for (int killed = 0, completed = 0; killed < kills;) {
        const auto ending = run(folder, gradient_equivalence, sweep, moment(random));
        killed += ending.timed_out;
        BOOST_TEST((ending.timed_out || ending.status == 0), ending.err);
        if (!fs::exists(folder / "r.h5")) continue;
        const auto held = runs_of(folder / "r.h5", "judged/relative_rms");
        for (const auto& [name, errors] : finished) BOOST_TEST((held.contains(name) && held.at(name) == errors), name);
        for (const auto& [name, errors] : held) BOOST_TEST((expected.contains(name) && errors.size() == 7), name);
        finished = held;
        if (ending.timed_out) continue;
        is_complete();
        fs::remove(folder / "r.h5");
        finished.clear();
        BOOST_TEST_MESSAGE(++completed << " sweeps done after " << killed << " kills");
    }

    const auto last = run(folder, gradient_equivalence, sweep);
    BOOST_TEST(last.status == 0, last.err);
    is_complete();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
