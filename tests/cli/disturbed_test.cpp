#include "experiments/record/hdf5.hpp"
#include "process.hpp"

#include <fmt/format.h>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <set>

// What predict can be told of clocks, rings side by side, stragglers and noise.

namespace ringlab::cli::test {
namespace {

/// Two sizes on hosts of eight GPUs.
const auto quickly = words_of(
    "--ranks 8 --layouts zigzag --tokens-per-rank 256 512 --machines h200_cluster --span-ranks 0 -o r.h5 --overwrite");

/// The numbers of a dataset after `predict`.
std::vector<double> predicted_numbers(const Folder& folder, const Words& more, const std::string& dataset) {
    const auto ending = run(folder, predict, quickly + more);
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    return experiments::hdf5::File::open(folder / "r.h5").dataset(dataset).doubles();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_disturbed)

BOOST_AUTO_TEST_CASE(a_seed_gives_the_same_times_on_any_number_of_processors) {
    const Folder folder;
    const auto noisy =
        words_of("--slow-gpus 1 --slow-links 1 --compute-noise 0.1 --transfer-noise 0.2 --start-skew 20 --repeats 9");
    const auto* times = "predicted/disturbed_makespan";
    const auto one = predicted_numbers(folder, noisy, times);
    BOOST_TEST(one.size() == 2 * 2 * 9u);  // runs, passes, repeats
    BOOST_TEST(std::set<double>(one.begin(), one.end()).size() == one.size());
    const auto alone = run(folder, "taskset", Words{"1", predict} + quickly + noisy);  // on one processor
    BOOST_REQUIRE_MESSAGE(alone.status == 0, alone.err);
    BOOST_TEST(experiments::hdf5::File::open(folder / "r.h5").dataset(times).doubles() == one,
               boost::test_tools::per_element());
    BOOST_TEST((predicted_numbers(folder, noisy + Words{"--seed", "2"}, times) != one));
    // With a trace, which is made on one thread, and what it shows beside the undisturbed run.
    BOOST_TEST(predicted_numbers(folder, noisy + Words{"--trace", "t.json"}, times) == one,
               boost::test_tools::per_element());
    BOOST_TEST(contains(contents_of(folder / "t.json"), "disturbed on h200_cluster"));
}

BOOST_AUTO_TEST_CASE(percentiles_stand_in_the_table_and_times_in_the_record) {
    const Folder folder;
    const auto ending = run(folder, predict, quickly + Words{"--slow-gpus", "2", "--compute-noise", "0.05"});
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    for (const auto* column : {"5 % ms", "50 % ms", "95 % ms", "99 % ms", "both", "of 100 disturbed repeats"})
        BOOST_TEST(contains(ending.out, column), ending.out);
    // Two GPUs that take 1.2 times as long, of which one would hold up the others.
    const auto file = experiments::hdf5::File::open(folder / "r.h5");
    const auto disturbed = file.dataset("predicted/disturbed_makespan").doubles();  // (run, machine, pass, repeat)
    const auto alone = file.dataset("predicted/makespan").doubles();
    BOOST_REQUIRE_EQUAL(disturbed.size(), 100 * alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
        const auto first = disturbed.begin() + static_cast<std::ptrdiff_t>(100 * i);
        std::vector<double> sorted(first, first + 100);
        std::ranges::sort(sorted);
        BOOST_TEST(sorted[5] < sorted[95]);
        BOOST_TEST(sorted[50] > 1.05 * alone[i]);
        BOOST_TEST(sorted[50] < 1.35 * alone[i]);
    }
    // What is not disturbed says nothing of it.
    const auto plain = run(folder, predict, quickly);
    BOOST_TEST(!contains(plain.out, "% ms"), plain.out);
    BOOST_TEST(!contains(plain.out, "disturbed"), plain.out);
}

BOOST_AUTO_TEST_CASE(rings_side_by_side_share_ports_where_they_are_strided) {
    const Folder folder;
    const auto* ends = "predicted/makespan";
    const auto alone = predicted_numbers(folder, {}, ends);
    const auto consecutive = predicted_numbers(folder, {"--replicas", "8"}, ends);
    const auto strided = predicted_numbers(folder, {"--replicas", "8", "--placement", "strided"}, ends);
    BOOST_TEST(consecutive == alone, boost::test_tools::per_element());
    for (std::size_t i = 0; i < alone.size(); ++i) BOOST_TEST(strided[i] > 1.5 * alone[i]);
    const auto by_rank = predicted_numbers(folder, {"--replicas", "3"}, "predicted/compute_time");
    BOOST_TEST(by_rank.size() == 2 * 2 * 3 * 8u);  // runs, passes, rings, ranks

    // As a file: the same as strided, ring by ring; and numbers that are missing, or GPUs that are not there.
    std::string gpus;
    for (int ring = 0; ring < 8; ++ring)
        for (int rank = 0; rank < 8; ++rank) gpus += fmt::format("{}\n", 8 * rank + ring);
    write_file(folder / "gpus.txt", gpus);
    const Words from_file{"--replicas", "8", "--placement", "file:gpus.txt"};
    BOOST_TEST(predicted_numbers(folder, from_file, ends) == strided, boost::test_tools::per_element());
    const auto refusal = [&](const std::string& text) {
        write_file(folder / "gpus.txt", text);
        const auto ending = run(folder, predict, quickly + from_file);
        BOOST_TEST(ending.status == 1);
        return ending.err;
    };
    BOOST_TEST(contains(refusal("0 1 2"), "'gpus.txt' holds 3 GPUs; 8 rings of 8 ranks need 64"));
    BOOST_TEST(contains(refusal(gpus + "64"), "holds more GPUs"));
    BOOST_TEST(contains(refusal(gpus.replace(0, 1, "8")), "GPU 8 in the placement"));
    BOOST_TEST(contains(refusal("first"), "'first'"));
}

BOOST_AUTO_TEST_CASE(a_sustained_clock_and_gradients_of_16_bits_are_chosen_by_options) {
    const Folder folder;
    // Power bounds long passes, as the machine file says by power_teraflops; a clock of short runs is asked for.
    const auto clocks_of = [&](const Words& more) {
        const auto long_pass = words_of(
            "--ranks 2 --layouts zigzag --tokens-per-rank 32768 --heads 32:8 --head-dim 128 --machines "
            "2xh200_calibrated -o r.h5 --overwrite");
        const auto ending = run(folder, predict, long_pass + more);
        BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
        return experiments::hdf5::File::open(folder / "r.h5").dataset("predicted/clock").doubles();
    };
    for (const auto clock : clocks_of({"--clock", "calibrated"})) BOOST_TEST(clock == 1);
    for (const auto clock : clocks_of({})) {
        BOOST_TEST(clock < 0.99);
        BOOST_TEST(clock > 0.8);
    }
    // Where gradients hop from host to host, half of their bytes are saved.
    const Words far{"--replicas", "8", "--placement", "strided"};
    const auto policies =
        predicted_numbers(folder, far + Words{"--policies", "carry", "gradients"}, "predicted/makespan");
    BOOST_REQUIRE_EQUAL(policies.size(), 2 * 2 * 2u);  // sizes, policies, passes
    for (std::size_t i = 0; i < policies.size(); i += 4) {
        BOOST_TEST(policies[i] == policies[i + 2]);
        BOOST_TEST(policies[i + 3] < 0.8 * policies[i + 1]);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
