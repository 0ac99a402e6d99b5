// Faults of the machine that need no processes of their own.

#include "experiments/record/hdf5.hpp"
#include "process.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::cli::test {
namespace {

/// One line on stderr beside progress and notes.
std::string only_line(const Ending& ending) {
    const auto lines = lines_beside_progress(ending.err);
    BOOST_REQUIRE_MESSAGE(lines.size() == 1u, ending.err);
    return lines.front();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_faults)

BOOST_AUTO_TEST_CASE(a_fault_that_cannot_be_made_is_refused_in_one_line) {
    const Folder folder;
    const auto refused = [&](const std::string& fault) {
        const auto ending = run(folder, gradients, small + Words{"--fault", fault, "-o", "r.h5"});
        BOOST_TEST(ending.status == 1);
        return only_line(ending);
    };
    BOOST_TEST(contains(refused("loud:1"), "--fault loud:1: there are slow:RANK, stop:RANK and kill:RANK"));
    BOOST_TEST(contains(refused("slow:4"), "--fault slow:4: ranks are 0..3"));
    BOOST_TEST(contains(refused("slow:x"), "the rank of --fault"));
    BOOST_TEST(contains(refused("stop:1"), "--fault stop:1: only a process of its own can be stopped or killed"));
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_slow_rank_is_named_in_a_note_and_in_the_record) {
    const Folder folder;
    const auto sizes =
        words_of("--layouts zigzag --masks causal --schedules ring --ranks 4 --input normal --tokens 1024 -o r.h5");
    const auto ending = run(folder, gradients, sizes + Words{"--fault", "slow:2"});
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(contains(ending.err, "[note] rank 2 is slow: "), ending.err);
    const auto record = experiments::hdf5::File::open(folder / "r.h5");
    BOOST_TEST(record.dataset("runs/slow_rank").doubles() == std::vector<double>{2}, boost::test_tools::per_element());
    const auto factor = record.dataset("runs/slow_rank_factor").doubles().front();
    BOOST_TEST(factor > 2);
    BOOST_TEST(factor < 6);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
