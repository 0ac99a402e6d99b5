#include "experiments/files/record_files.hpp"
#include "process.hpp"

#include <fmt/format.h>
#include <boost/test/unit_test.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <csignal>

// Where results go when somebody else uses the same names.

namespace ringlab::cli::test {
namespace {

const std::string precious = "a year of work\n";
const Words sweep{"--tokens", "512",     "--layouts", "contiguous", "zigzag",      "striped", "striped:4", "--ranks",
                  "4",        "--masks", "causal",    "full",       "--schedules", "ring",    "pull"};
constexpr std::size_t sweep_runs = 4 * 2 * 2;

std::string shell_words(const std::string& program, const Words& arguments) {
    auto text = "'" + program + "'";
    for (const auto& word : arguments) text += " '" + word + "'";
    return text;
}

/// Runs the program, and `meanwhile` as soon as `file` is there.
Ending run_while(const Folder& folder, const std::string& program, const Words& arguments, const std::string& file,
                 const std::string& meanwhile) {
    return run(folder, "sh",
               {"-c", shell_words(program, arguments) + " & pid=$!; while [ ! -e " + file +
                          " ]; do sleep 0.005; done; " + meanwhile + "; wait $pid"},
               120);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_output)

BOOST_AUTO_TEST_CASE(a_file_that_is_moved_to_the_path_of_the_record_during_a_run_stays_and_no_run_is_lost) {
    const Folder folder;
    write_file(folder / "precious", precious);
    const auto ending = run_while(folder, gradients, sweep + Words{"-o", "w.h5"}, "w.h5", "mv precious w.h5");
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(contents_of(folder / "w.h5") == precious);
    BOOST_TEST(runs_of(folder / "w-2.h5", "judged/relative_rms").size() == sweep_runs);
    BOOST_TEST(contains(ending.err, "[note] 'w.h5' is not the file that was there before"), ending.err);
    BOOST_TEST(contains(ending.out, "w-2.h5"), ending.out);
    BOOST_TEST(folder.left() == (Words{"w-2.h5", "w.h5"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_record_that_takes_the_place_of_anothers_while_it_is_overwritten_stays) {
    const Folder folder;
    const auto old = run(folder, gradients, small + Words{"-o", "w.h5"});
    BOOST_REQUIRE(old.status == 0);
    fs::copy_file(folder / "w.h5", folder / "theirs.h5");
    const auto theirs = contents_of(folder / "theirs.h5");
    const auto ending = run_while(folder, gradients, sweep + Words{"-o", "w.h5", "--overwrite"},
                                  experiments::unfinished_of("w.h5"), "mv theirs.h5 w.h5");
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST((contents_of(folder / "w.h5") == theirs));
    BOOST_TEST(runs_of(folder / "w-2.h5", "judged/relative_rms").size() == sweep_runs);
    BOOST_TEST(folder.left() == (Words{"w-2.h5", "w.h5"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_put_where_a_trace_or_tensors_will_go_stays) {
    const Folder folder;
    write_file(folder / "precious", precious);
    const auto traced =
        run_while(folder, predict, {"--tokens-per-rank", "256", "512", "1024", "--trace", "t.json", "-o", "p.h5"},
                  "p.h5", "mv precious t.json");
    BOOST_TEST(traced.status == 0, traced.err);
    BOOST_TEST(contents_of(folder / "t.json") == precious);
    BOOST_TEST(contains(contents_of(folder / "t-2.json"), "traceEvents"));
    BOOST_TEST(contains(traced.out, "Trace: t-2.json"), traced.out);

    const Words save{"--save-tensors", "t", "-o", "s.h5"};
    BOOST_REQUIRE(run(folder, gradients, small + save).status == 0);
    const auto tensors = fs::directory_iterator(folder / "t")->path().filename().string();
    const auto saved = contents_of(folder / "t" / tensors);
    write_file(folder / "precious", precious);
    const auto again = run_while(folder, gradients, small + save + Words{"--overwrite"},
                                 experiments::unfinished_of("s.h5"), fmt::format("mv precious 't/{}'", tensors));
    BOOST_TEST(again.status == 0, again.err);
    const bool came_in_time = contains(again.err, "is not the file that was there before");
    BOOST_TEST((!came_in_time || contents_of(folder / "t" / tensors) == precious));
    BOOST_TEST(saved.size() > 1000u);
}

BOOST_AUTO_TEST_CASE(of_several_runs_at_once_each_has_a_record_of_its_own) {
    const Folder folder;
    const auto one = shell_words(gradients, small);
    const auto ending = run(folder, "sh", {"-c", one + " & " + one + " & " + one + " & " + one + " & wait"});
    BOOST_TEST(lines_beside_progress(ending.err).empty(), ending.err);
    const Words expected{"gradient_equivalence-2.h5", "gradient_equivalence-3.h5", "gradient_equivalence-4.h5",
                         "gradient_equivalence.h5"};
    BOOST_TEST(folder.left() == expected, boost::test_tools::per_element());
    for (const auto& name : expected) {
        BOOST_TEST(runs_of(folder / name, "judged/relative_rms").size() == 1u, name);
        BOOST_TEST(contains(ending.out, name), ending.out);
    }
}

BOOST_AUTO_TEST_CASE(a_file_of_mode_444_is_not_rewritten) {
    const Folder folder;
    const Words outputs{"-o", "r.h5", "--trace", "t.json"};
    const Words command = Words{"--ranks", "4", "--tokens-per-rank", "64", "--machines", "ideal"} + outputs;
    BOOST_REQUIRE(run(folder, predict, command).status == 0);
    for (const auto* file : {"r.h5", "t.json"}) {
        const auto before = contents_of(folder / file);
        BOOST_REQUIRE(::chmod((folder / file).c_str(), 0444) == 0);
        for (const auto* how : {"--overwrite", "--resume"}) {
            const auto ending = run(folder, predict, command + Words{how});
            BOOST_TEST(ending.status == 1);
            BOOST_TEST(lines_beside_progress(ending.err).size() == 1u, ending.err);
            BOOST_TEST(contains(ending.err, fmt::format("{} is write-protected (mode 444)", file)), ending.err);
            BOOST_TEST((contents_of(folder / file) == before));
        }
        BOOST_REQUIRE(::chmod((folder / file).c_str(), 0644) == 0);
    }
}

BOOST_AUTO_TEST_CASE(an_output_that_is_a_link_to_itself_is_called_that) {
    const Folder folder;
    fs::create_symlink("loop.h5", folder / "loop.h5");
    for (const auto& more : {Words{}, Words{"--overwrite"}, Words{"--resume"}}) {
        const auto ending = run(folder, gradients, small + more + Words{"-o", "loop.h5"});
        BOOST_TEST(ending.status == 1);
        BOOST_TEST(contains(ending.err, "--output 'loop.h5': 'loop.h5' is a link that leads to itself"), ending.err);
    }
    BOOST_TEST(fs::is_symlink(folder / "loop.h5"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
