#include "process.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <csignal>

// What cannot finish says so before, and what is ended leaves nothing behind but what was done.

namespace ringlab::cli::test {
namespace {

const auto long_sweep = words_of(
    "--tokens 1024 --layouts contiguous zigzag striped striped:4 --ranks 4 8 --schedules ring pull --masks causal "
    "full");

// A library that puts a handler of its own in the place of SIGHUP's before main(), as UCX does below Open MPI 5. It is
// there before the runtime of the address sanitizer is, to which that does no harm.
const std::string with_a_library_that_takes_hangups =
    std::string("ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 LD_PRELOAD='") + RINGLAB_TAKES_HANGUPS + "'";

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_interrupt)

BOOST_DATA_TEST_CASE(a_stopped_sweep_says_one_line_and_leaves_its_record_alone,
                     boost::unit_test::data::make({SIGINT, SIGTERM, SIGHUP}), signal) {
    const Folder folder;
    const auto ending = interrupted(folder, gradient_equivalence, long_sweep + Words{"-o", "r.h5"}, signal);
    BOOST_TEST(ending.status == 128 + signal, ending.err);
    const auto lines = lines_beside_progress(ending.err);
    BOOST_REQUIRE(lines.size() == 1u);
    BOOST_TEST(lines[0].starts_with("interrupted; "), lines[0]);
    BOOST_TEST(contains(lines[0], " of 32 runs are in 'r.h5'"), lines[0]);
    BOOST_TEST(contains(lines[0], "--resume"), lines[0]);
    BOOST_TEST(folder.left() == Words{"r.h5"}, boost::test_tools::per_element());
    // What it says it has, it has, and goes on from there; a signal may come while a run is being put there.
    const auto done = std::stoul(lines[0].substr(std::string("interrupted; ").size()));
    const auto held = runs_of(folder / "r.h5", "judged/relative_rms").size();
    BOOST_TEST(held >= done);
    BOOST_TEST(held <= done + 1);
    if (signal == SIGINT)
        BOOST_TEST(run(folder, gradient_equivalence, long_sweep + Words{"-o", "r.h5", "--resume"}, 300).status == 0);
}

BOOST_AUTO_TEST_CASE(a_hangup_ends_a_sweep_even_where_a_library_has_taken_the_signal_before_main) {
    const Folder folder;
    const auto ending = interrupted(folder, gradient_equivalence, long_sweep + Words{"-o", "r.h5"}, SIGHUP,
                                    with_a_library_that_takes_hangups);
    BOOST_TEST(ending.status == 128 + SIGHUP, ending.err);
    const auto lines = lines_beside_progress(ending.err);
    BOOST_REQUIRE(lines.size() == 1u);
    BOOST_TEST(lines[0].starts_with("interrupted; "), lines[0]);
    BOOST_TEST(folder.left() == Words{"r.h5"}, boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(what_the_caller_lets_be_ignored_is_ignored,
                     boost::unit_test::data::make({std::string(), with_a_library_that_takes_hangups}), environment) {
    const Folder folder;
    const auto ending =
        run(folder, "sh",
            {"-c", "trap '' HUP; env " + environment + " '" + predict +
                       "' --ranks 64 --tokens-per-rank 512 --machines h200_cluster -o r.h5 & pid=$!; sleep "
                       "0.2; kill -HUP $pid; wait $pid"});
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(!contains(ending.err, "took"), ending.err);
}

/// A sweep that this computer cannot do, and what its refusal names.
struct TooMuch {
    std::string program;
    Words arguments, says;
};

std::ostream& operator<<(std::ostream& out, const TooMuch& one) {
    for (const auto& argument : one.arguments) out << argument << ' ';
    return out;
}

const auto generated = words_of("--input normal --layouts zigzag --masks causal --schedules ring");

const std::vector<TooMuch> too_much{
    {gradient_equivalence,
     generated + Words{"--ranks", "1048576", "--tokens", "2Mi"},
     {"--ranks 1048576", "ranks fit"}},
    {gradient_equivalence, generated + words_of("--ranks 2 --tokens 64 --batch 1G"), {"memory", "would fit"}},
    {gradient_equivalence, generated + words_of("--ranks 2 --tokens 512 --heads 1M"), {"memory", "would fit"}},
    {gradient_equivalence, generated + Words{"--ranks", "8", "--tokens", "1Gi"}, {"memory", "would fit"}},
    {bf16_error, words_of("--input normal --ranks 8 --layouts zigzag --tokens 1Gi"), {"memory"}},
    {predict,
     {"--ranks", "1048576", "--tokens-per-rank", "2", "--layouts", "contiguous", "--compute-model", "rate",
      "--machines", "ideal"},
     {"--ranks 1048576", "days", "--engine unshared"}},
};

BOOST_DATA_TEST_CASE(what_cannot_be_done_here_is_refused_with_what_would_fit, boost::unit_test::data::make(too_much)) {
    const Folder folder;
    const auto ending = run(folder, sample.program, sample.arguments, 60);
    BOOST_TEST(ending.status == 1, ending.err);
    BOOST_TEST(ending.seconds < 10);
    const auto lines = lines_beside_progress(ending.err);
    BOOST_REQUIRE(lines.size() == 1u);
    for (const auto& part : sample.says) BOOST_TEST(contains(lines[0], part), lines[0]);
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_takes_long_says_so_before_and_how_far_it_is) {
    const Folder folder;
    const auto ending = run(folder, gradient_equivalence,
                            words_of("--input normal --tokens 128Ki --ranks 2 --layouts zigzag --masks causal "
                                     "--schedules ring --arithmetic fp32 -o r.h5"),
                            3);
    BOOST_TEST(ending.timed_out);
    BOOST_TEST(contains(ending.err, "[estimate] 1 run: about "), ending.err);
    BOOST_TEST(contains(ending.err, "tokens over 2 ranks would take"), ending.err);
    BOOST_TEST(contains(ending.err, "[1/1] causal zigzag P=2 S=131072 ring normal: about "), ending.err);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
