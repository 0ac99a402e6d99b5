// The gate of the CPU backend with ranks that are processes: run by mpirun, every process executes every case, and the
// root process checks.
#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_ALTERNATIVE_INIT_API
#include "processes/mpi_calls.hpp"
#include "processes/session.hpp"
#include "reference/ranks/transport.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <thread>

namespace ringlab::reference::tests {
namespace {

using layouts::Accumulation;
using layouts::OpKind;
using layouts::Pass;
using layouts::RingGroup;

const processes::Session* session = nullptr;

boost::test_tools::assertion_result has_even_size(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result result(session->size() % 2 == 0);
    if (!result) result.message() << session->size() << " processes make no two rings";
    return result;
}

/// Every schedule under every mask; layouts and accumulations take turns.
void check_in(const RingGroup& group) {
    const auto world = make_mpi_world(group);
    const auto layouts = ringlab::tests::layout_examples();
    std::size_t turn = 0;
    ringlab::tests::Combinations combinations;
    for (const auto& schedule_name : ringlab::tests::schedules_for(small_problem(8)))
        for (const std::string mask : {"causal", "window:8,0+sink:3", "causal+documents:1,13,58", "valid:2-19,23-35"})
            for (const auto accumulation : {Accumulation::carry, Accumulation::partials}) {
                const auto& layout = layouts[turn++ % layouts.size()];
                const GateCase c{small_problem(72), mask, layout, schedule_name, group.ring, accumulation};
                if (!combinations.take(ringlab::tests::suits(c.problem, schedule_name, group.ring) &&
                                       72 % layouts::layout_granularity(layout, group.ring) == 0))
                    continue;
                std::vector<Inputs> inputs;
                for (int replica = 0; replica < group.replicas; ++replica)
                    inputs.push_back(random_inputs(c.problem, 40u + static_cast<unsigned>(replica)));
                const auto forward = schedule_of(c, Pass::forward), backward = schedule_of(c, Pass::backward);
                const auto runs = run(*world, *forward, backward.get(), inputs, small_tiles());
                BOOST_TEST((runs.empty() != world->is_root()));
                for (std::size_t replica = 0; replica < runs.size(); ++replica) {
                    const auto found = complaint(runs[replica].outputs, expected_of(c, inputs[replica]));
                    BOOST_TEST(found == "", layout << " " << mask << " " << schedule_name << ": " << found);
                }
            }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mpi)

BOOST_AUTO_TEST_CASE(a_ring_of_all_processes_equals_dense_attention) { check_in({session->size(), 1, {}}); }

BOOST_AUTO_TEST_CASE(rings_of_half_the_processes_equal_dense_attention_each_with_inputs_of_its_own,
                     *boost::unit_test::precondition(has_even_size)) {
    for (const auto placement : {RingGroup::Placement::consecutive, RingGroup::Placement::strided})
        check_in({session->size() / 2, 2, placement});
}

BOOST_AUTO_TEST_CASE(what_an_int_cannot_count_is_cut_into_parts_that_cover_it) {
    constexpr std::size_t most = std::numeric_limits<int>::max();
    for (const auto bytes : {std::size_t{0}, std::size_t{1}, most, most + 1, most + 2, 5 * most}) {
        std::size_t next = 0;
        int parts = 0;
        processes::for_each_part(bytes, [&](std::size_t offset, int part) {
            BOOST_TEST(offset == next);
            BOOST_TEST((part > 0 || bytes == 0));
            next += static_cast<std::size_t>(part);
            ++parts;
        });
        BOOST_TEST(next == bytes);
        BOOST_TEST(parts >= 1);
    }
}

BOOST_AUTO_TEST_CASE(messages_of_many_megabytes_arrive_whole_and_times_are_on_one_clock) {
    auto problem = small_problem(24 * session->size());
    problem.head_dim = problem.value_dim = 8192;
    const GateCase c{problem, "causal", "zigzag", "ring", session->size()};
    const auto world = make_mpi_world({session->size(), 1, {}});
    const auto inputs = random_inputs(c.problem, 50);
    const auto result = run_case(*world, c, inputs, small_tiles());
    if (!world->is_root()) return;
    BOOST_TEST(result.outputs.o.size() > 0u);
    BOOST_TEST(result.clock_uncertainty >= 0);
    BOOST_TEST(result.clock_uncertainty < 0.1);
    // Nothing is received before its sender began to send it, as far as the clocks can tell.
    const auto slack = layouts::to_picoseconds(2 * result.clock_uncertainty);
    for (const auto& receive : result.forward.spans) {
        if (receive.kind != OpKind::receive) continue;
        const auto send = std::ranges::find_if(result.forward.spans, [&](const layouts::Span& span) {
            return span.kind == OpKind::send && span.rank == receive.peer && span.peer == receive.rank &&
                   span.block == receive.block;
        });
        BOOST_TEST_REQUIRE((send != result.forward.spans.end()));
        BOOST_TEST(receive.end + slack >= send->begin);
    }
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

/// A run in which rank 1 keeps a block to itself: it must end, with a message and a status that is not 0.
void run_that_cannot_end() {
    const GateCase c{small_problem(48), "full", "contiguous", "ring", session->size()};
    const auto schedule = schedule_of(c, Pass::forward);
    auto options = small_tiles();
    options.timeout = std::chrono::milliseconds(500);
    const auto inputs = random_inputs(c.problem, 60);
    WrappedWorld<MutedTransport> world(make_mpi_world({session->size(), 1, {}}));
    run(world, *schedule, nullptr, inputs, options);
}

/// Rank 1 computes for longer than any wait for it may last: in a ring the others wait for what it passes on, in a
/// pull at the end of the pass.
void peer_that_computes() {
    auto options = small_tiles();
    options.timeout = std::chrono::seconds(2);
    const auto inputs = random_inputs(small_problem(48), 60);
    for (const char* schedule_name : {"ring", "pull"}) {
        const GateCase c{small_problem(48), "full", "contiguous", schedule_name, session->size()};
        const auto schedule = schedule_of(c, Pass::forward);
        WrappedWorld<LongComputing<7000>> world(make_mpi_world({session->size(), 1, {}}));
        run(world, *schedule, nullptr, inputs, options);
    }
}

/// Rank 0 does something else for longer than the session's patience: it lives, so the others wait.
void root_that_is_busy() {
    const auto world = make_mpi_world({session->size(), 1, {}});
    require(world->agree(true), "the root has agreed to something else");
    if (world->is_root()) std::this_thread::sleep_for(std::chrono::seconds(12));
    require(!world->agree(false), "the root has agreed to something else");
}

/// Exits as MPI libraries do when they find a process gone.
void ended_by_a_library() {
    if (session->rank() == 1) std::exit(EXIT_FAILURE);
    std::this_thread::sleep_for(std::chrono::seconds(20));
}

void stop() { std::raise(SIGSTOP); }
void (*after_finalize)() = nullptr;

/// A scene that the test plays on request instead of its suite, and how long its processes wait for each other.
struct Scene {
    std::chrono::seconds patience;
    void (*play)();
};

const std::map<std::string, Scene, std::less<>> scenes{
    {"--run-that-cannot-end", {std::chrono::seconds(30), run_that_cannot_end}},
    {"--root-that-is-busy", {std::chrono::seconds(8), root_that_is_busy}},
    {"--peer-that-computes", {std::chrono::seconds(30), peer_that_computes}},
    {"--ended-by-a-library", {std::chrono::seconds(30), ended_by_a_library}},
    {"--stopped-in-finalize",
     {std::chrono::seconds(8),
      [] {
          if (session->rank() == 1) after_finalize = stop;
      }}},
    {"--stopped-at-exit", {std::chrono::seconds(8), [] {
                               if (session->rank() == 1) std::atexit(stop);
                           }}}};

}  // namespace
}  // namespace ringlab::reference::tests

// In place of MPI's own, which it calls: where MPI has let go of the other processes, but not returned.
extern "C" int MPI_Finalize() {
    const int status = PMPI_Finalize();
    if (ringlab::reference::tests::after_finalize) ringlab::reference::tests::after_finalize();
    return status;
}

int main(int argc, char** argv) {
    namespace tests = ringlab::reference::tests;
    const auto scene = tests::scenes.find(argc > 1 ? argv[1] : "");
    const bool found = scene != tests::scenes.end();
    const ringlab::processes::Session session(argc, argv, found ? scene->second.patience : std::chrono::seconds(30));
    tests::session = &session;
    if (!found) return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
    scene->second.play();
    return 0;
}
