// Mistakes made on purpose, and faults of the machine that need no processes of their own.

#include "experiments/record/hdf5/hdf5.hpp"
#include "process.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::cli::test {
namespace {

const Words few{"--tokens", "128", "--launcher", "none", "-o", "r.h5"};

/// One line on stderr beside progress and notes.
std::string only_line(const Ending& ending) {
    const auto lines = lines_beside_progress(ending.err);
    BOOST_REQUIRE_MESSAGE(lines.size() == 1u, ending.err);
    return lines.front();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_faults)

BOOST_AUTO_TEST_CASE(every_mistake_is_seen_in_fp64_fp32_and_bf16) {
    for (const auto* arithmetic : {"fp64", "fp32", "bf16"}) {
        const Folder folder;
        const auto ending = run(folder, faults, few + Words{"--ranks", "2", "4", "--arithmetic", arithmetic}, 120);
        BOOST_TEST(ending.status == 0, ending.out + ending.err);
        BOOST_TEST(contains(ending.out, "All are seen, and nothing else."), ending.out);
        BOOST_TEST(contains(ending.err, "[note] faults of the machine are left out: no launcher"), ending.err);
        const auto record = experiments::hdf5::File::open(folder / "r.h5");
        const auto names = record.dataset("run").texts();
        for (const auto number : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
            BOOST_TEST(std::ranges::any_of(
                names, [&](const auto& name) { return name.starts_with(std::to_string(number) + " "); }));
        for (const auto caught : record.dataset("runs/caught").doubles()) BOOST_TEST(caught == 1);
        for (const auto factor : record.dataset("runs/factor").doubles()) BOOST_TEST(factor > 1);
        for (const auto factor : record.dataset("runs/right_factor").doubles()) BOOST_TEST(factor <= 1);
    }
}

BOOST_AUTO_TEST_CASE(sizes_on_which_no_mistake_shows_are_refused) {
    const Folder folder;
    const auto refused = [&](const Words& words) { return only_line(run(folder, faults, few + words)); };
    BOOST_TEST(contains(refused({"--ranks", "1"}), "--ranks 1, --tokens 128: mistakes show on 2 ranks or more"));
    BOOST_TEST(contains(refused({"--ranks", "3"}), "--ranks 3, --tokens 128: mistakes show"));
    BOOST_TEST(contains(refused({"--masks", "full"}), "--masks"));
    BOOST_TEST(contains(refused({"--mpi"}), "--mpi"));
    const auto launched = run(folder, faults, {"--tokens", "128", "--launcher", "no-such-launcher", "-o", "r.h5"});
    BOOST_TEST(launched.status == 1);
    BOOST_TEST(contains(launched.err, "'no-such-launcher' cannot be started"), launched.err);
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_fault_that_cannot_be_made_is_refused_in_one_line) {
    const Folder folder;
    const auto refused = [&](const std::string& fault) {
        const auto ending = run(folder, gradients, small + Words{"--fault", fault, "-o", "r.h5"});
        BOOST_TEST(ending.status == 1);
        return only_line(ending);
    };
    BOOST_TEST(contains(refused("loud:1"), "--fault loud:1: there are slow:RANK, flip:RANK, stop:RANK and kill:RANK"));
    BOOST_TEST(contains(refused("slow:4"), "--fault slow:4: ranks are 0..3"));
    BOOST_TEST(contains(refused("slow:x"), "the rank of --fault"));
    BOOST_TEST(contains(refused("stop:1"), "--fault stop:1: only a process of its own can be stopped or killed"));
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_is_named_with_checksums_and_passes_without) {
    const Folder folder;
    const auto flipped = small + Words{"--fault", "flip:2", "-o", "r.h5"};
    const auto unnoticed = run(folder, gradients, flipped);
    BOOST_TEST(unnoticed.status == 0, unnoticed.err);
    const auto named = run(folder, gradients, flipped + Words{"--checksums", "--overwrite"});
    BOOST_TEST(named.status == 1);
    BOOST_TEST(contains(only_line(named), "rank 3 receives from rank 2: message 2 on channel 0, of "), named.err);
    const auto right = run(folder, gradients, small + Words{"--checksums", "--overwrite", "-o", "r.h5"});
    BOOST_TEST(right.status == 0, right.err);
}

BOOST_AUTO_TEST_CASE(a_slow_rank_is_named_in_a_note_and_in_the_record) {
    const Folder folder;
    const Words sizes{"--layouts", "zigzag",  "--masks", "causal",   "--schedules", "ring", "--ranks",
                      "4",         "--input", "normal",  "--tokens", "1024",         "-o",   "r.h5"};
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
