#include "experiments/record/hdf5.hpp"
#include "process.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <csignal>

namespace ringlab::cli::test {
namespace {

Ending run_mpi(const Folder& folder, int processes, const Words& arguments) {
    return run(folder, RINGLAB_MPIEXEC,
               Words{RINGLAB_MPIEXEC_NUMPROC_FLAG, std::to_string(processes), gradient_equivalence, "--mpi",
                     "--layouts", "zigzag", "--masks", "causal", "--tokens", "64", "-o", "r.h5"} +
                   arguments,
               90);
}

int lines_of_the_experiment(const std::string& text) {
    const auto lines = lines_beside_progress(text);
    return static_cast<int>(std::count_if(lines.begin(), lines.end(),
                                          [](const auto& line) { return line.starts_with("gradient_equivalence: "); }));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_mpi)

BOOST_AUTO_TEST_CASE(four_processes_are_a_ring_of_four) {
    const Folder folder;
    const auto ending = run_mpi(folder, 4, {"--ranks", "4", "--schedules", "ring", "pull"});
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(contains(ending.out, "all pass"), ending.out);
    BOOST_TEST(runs_of(folder / "r.h5", "judged/relative_rms").size() == 2u);
}

BOOST_AUTO_TEST_CASE(one_process_is_a_ring_of_one) {
    const Folder folder;
    const auto ending = run_mpi(folder, 1, {"--ranks", "1", "--schedules", "ring", "pull", "all-gather"});
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(contains(ending.out, "all pass"), ending.out);
}

// Libraries that MPI loads when it begins may take the signal: UCX does, where Open MPI is allowed to look at it.
BOOST_AUTO_TEST_CASE(a_hangup_ends_a_process_of_mpi) {
    const Folder folder;
    const auto ending = interrupted(folder, gradient_equivalence,
                                    {"--mpi", "--ranks", "1", "--tokens", "2048", "--layouts", "contiguous", "zigzag",
                                     "striped", "--masks", "causal", "full", "-o", "r.h5"},
                                    SIGHUP, "OMPI_MCA_pml=ob1,ucx");
    BOOST_TEST(ending.status == 128 + SIGHUP, ending.err);
    BOOST_TEST(contains(ending.err, "interrupted; "), ending.err);
}

BOOST_AUTO_TEST_CASE(two_replicas_of_a_ring_of_two_agree_with_dense_attention_in_both_placements) {
    for (const auto* placement : {"consecutive", "strided"}) {
        const Folder folder;
        const auto ending =
            run_mpi(folder, 4, {"--ranks", "2", "--replicas", "2", "--placement", placement, "--schedules", "ring"});
        BOOST_TEST(ending.status == 0, ending.err);
        BOOST_TEST(contains(ending.out, "all pass"), ending.out);
        const auto runs = runs_of(folder / "r.h5", "judged/relative_rms");
        BOOST_REQUIRE(runs.size() == 1u);
        BOOST_TEST(runs.begin()->second.size() == 14u);  // replicas x tensors
    }
}

BOOST_AUTO_TEST_CASE(a_wrong_process_count_gives_one_clear_line_and_ends) {
    const Folder folder;
    const auto ending = run_mpi(folder, 3, {"--ranks", "4"});
    BOOST_TEST(!ending.timed_out);
    BOOST_TEST(ending.status != 0);
    BOOST_TEST(lines_of_the_experiment(ending.err) == 1, ending.err);  // mpirun adds its own lines
    BOOST_TEST(contains(ending.err, "need 4 MPI processes (mpirun -np 4); there are 3"), ending.err);
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_process_of_its_own_that_needs_others_says_so_and_nothing_else) {
    const Folder folder;
    const auto ending = run(folder, gradient_equivalence, small + Words{"--mpi", "-o", "r.h5"});
    BOOST_TEST(ending.status == 1);
    BOOST_REQUIRE(lines_beside_progress(ending.err).size() == 1u);
    BOOST_TEST(contains(ending.err, "need 4 MPI processes (mpirun -np 4); there are 1"), ending.err);
}

BOOST_AUTO_TEST_CASE(an_error_of_the_root_alone_ends_all_processes) {
    const Folder folder;
    write_file(folder / "r.h5", "someone's file");
    const auto ending = run_mpi(folder, 4, {"--ranks", "4", "--schedules", "ring"});
    BOOST_TEST(!ending.timed_out);
    BOOST_TEST(ending.status != 0);
    BOOST_TEST(lines_of_the_experiment(ending.err) == 1, ending.err);
    BOOST_TEST(contents_of(folder / "r.h5") == "someone's file");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
