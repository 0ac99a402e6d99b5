// Rings over several GPUs by every transport: the same bits as virtual ranks on one.

#include "gpu/execution/executor.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/executor_case.hpp"
#include "tests/gpu/pretended_hosts.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <ostream>
#include <thread>

namespace ringlab::gpu {
std::ostream& boost_test_print_type(std::ostream& out, TransportKind kind) { return out << to_string(kind); }
}  // namespace ringlab::gpu

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using gpu::TransportKind;

boost::test_tools::assertion_result has_several_gpus(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result result(gpu::devices().size() >= 2);
    if (!result) result.message() << "no GPU on this machine to be a second one";
    return result;
}

boost::test_tools::assertion_result has_four_gpus(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result result(gpu::devices().size() >= 4);
    if (!result) result.message() << "fewer than four GPUs on this machine";
    return result;
}

int gpu_count() { return static_cast<int>(std::min<std::size_t>(gpu::devices().size(), 8)); }

// A sample, one of each way that messages travel: on one GPU executor_test.cpp has all schedules.
const std::vector<std::string> schedule_names{
    "ring",       "all-gather:2",      "pull:2",       "seen", "bidirectional", "pass-q", "ulysses:2",
    "merge:tree", "joined-ring:steps", "joined-ring:2"};

BOOST_AUTO_TEST_SUITE(multi_gpu, *boost::unit_test::precondition(has_several_gpus))

BOOST_DATA_TEST_CASE(every_transport_gives_the_bits_of_virtual_ranks_on_one_gpu,
                     data::make({TransportKind::loopback, TransportKind::copy, TransportKind::nccl,
                                 TransportKind::mixed}) *
                         data::make(schedule_names),
                     transport, schedule) {
    const PretendedHosts hosts(gpu_count() > 2 ? 2 : 1);
    for (int ranks = 2; ranks <= gpu_count(); ++ranks) {
        if (ranks != 2 && ranks != 3 && ranks != gpu_count()) continue;
        if (schedule == "ulysses:2" && ranks % 2 != 0) continue;
        auto problem = small_problem();
        problem.tokens = 96 * ranks;
        for (const std::string mask : {"causal", "window:31,17+valid:50-100"}) {
            RingCase c{problem, mask, "zigzag", schedule, ranks};
            c.options.deterministic = true;
            c.options.devices = {0};
            const auto inputs = host_inputs(problem, static_cast<std::uint64_t>(ranks));
            const auto expected = run_case(c, inputs);
            c.options.transport = transport;
            c.options.devices.clear();
            c.options.repeats = 3;
            // Where NCCL takes part, blocks that are there from the start get a fused launch of their own, so sums
            // differ.
            const bool over_nccl = transport == TransportKind::nccl || transport == TransportKind::mixed;
            const bool sums_differ = over_nccl && (schedule == "pull:2" || schedule.starts_with("joined-ring"));
            BOOST_TEST_CONTEXT(c) {
                if (sums_differ)
                    agrees_with_the_reference(c);
                else
                    check_identical(run_case(c, inputs).outputs, expected.outputs);
            }
        }
    }
}

// Under this mask each rank passes gradients on that it adds nothing to, and rank 2 begins the gradient of the second
// half of block 3 in a slot from which it has sent another one. The launch has to wait for that send, which sets no
// flag here.
BOOST_AUTO_TEST_CASE(a_launch_waits_for_the_send_that_frees_a_slot, *boost::unit_test::precondition(has_four_gpus)) {
    auto problem = small_problem();
    problem.tokens = 96 * 4;
    RingCase c{problem, "window:48,0", "zigzag", "joined-ring:2", 4};
    c.options.transport = TransportKind::copy;
    c.options.repeats = 3;
    BOOST_TEST_CONTEXT(c) { agrees_with_the_reference(c); }
}

// Rows that few ranks own and all have keys for, pass after pass, judged against the reference; and each rank's
// messages take no time of their own, so they are inside its launch.
BOOST_DATA_TEST_CASE(ranks_merge_in_one_launch_each, data::make({"contiguous", "striped"}) * data::make({1, 4}), layout,
                     batch) {
    for (int ranks = 2; ranks <= gpu_count(); ++ranks) {
        RingCase c{small_problem(), "causal", layout, "joined-merge", ranks};
        c.problem.batch = batch;
        c.problem.tokens = 960 * ranks;
        c.problem.query_heads = 16;
        c.problem.kv_heads = 4;
        c.problem.queries = {{c.problem.tokens - 3, c.problem.tokens}};
        c.options.transport = TransportKind::copy;
        c.options.repeats = 20;
        agrees_with_the_reference(c);
        const auto inputs = host_inputs(c.problem, 9);
        const auto once = run_case(c, inputs), again = run_case(c, inputs);
        BOOST_TEST((once.outputs.o.values == again.outputs.o.values));
        for (const auto& span : once.forward.timelines.at(0).spans)
            BOOST_TEST((span.lane == layouts::compute_lane || span.posted == span.end));
    }
}

// With 4 kv heads gradients are more than attends hide over few channels of NCCL (gpu::is_overlapped), with 1 only
// those that come home.
BOOST_DATA_TEST_CASE(large_blocks_arrive_whole,
                     data::make({TransportKind::copy, TransportKind::nccl, TransportKind::mixed}) * data::make({4, 1}),
                     transport, kv_heads) {
    const PretendedHosts hosts(gpu_count() > 2 ? 2 : 1);
    layouts::Problem problem;
    problem.tokens = 2048 * gpu_count();
    problem.query_heads = 16;
    problem.kv_heads = kv_heads;
    RingCase c{problem, "causal", "zigzag", "ring", gpu_count()};
    c.options.deterministic = true;
    c.options.devices = {0};
    const auto inputs = host_inputs(problem, 5);
    const auto expected = run_case(c, inputs);
    c.options.transport = transport;
    c.options.devices.clear();
    c.options.repeats = 10;
    check_identical(run_case(c, inputs).outputs, expected.outputs);
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(has_four_gpus))
BOOST_DATA_TEST_CASE(replicas_of_a_ring_reach_their_own_peers,
                     data::make({TransportKind::copy, TransportKind::nccl, TransportKind::mixed}), transport) {
    const PretendedHosts hosts(2);
    using Placement = layouts::RingGroup::Placement;
    for (const auto placement : {Placement::consecutive, Placement::strided}) {
        RingCase c{small_problem(), "causal", "zigzag", "ring", 2};
        c.options.deterministic = true;
        const std::vector inputs{host_inputs(c.problem, 1), host_inputs(c.problem, 2)};
        c.options.devices = {0};
        const auto first = run_case(c, inputs[0]), second = run_case(c, inputs[1]);
        c.options.devices.clear();
        c.options.transport = transport;
        c.options.group = {2, 2, placement};
        const auto runs = run_rings(c, inputs);
        check_identical(runs[0].outputs, first.outputs);
        check_identical(runs[1].outputs, second.outputs);
    }
}

/// A ring that cannot end, and what it says then.
struct Failing {
    RingCase c;
    std::string message = {};

    Failing(const std::string& schedule, int ranks, TransportKind transport, int timeout_seconds)
        : c{small_problem(), "full", "contiguous", schedule, ranks} {
        c.options.transport = transport;
        c.options.timeout = std::chrono::seconds(timeout_seconds);
    }
    void run(const gpu::FabricFactory& make_fabric) {
        const auto begin = gpu::Clock::now();
        message = error_of([&] { run_case(c, host_inputs(c.problem, 3), make_fabric); });
        BOOST_TEST(std::chrono::duration<double>(gpu::Clock::now() - begin).count() < 30);
    }
    bool says(const char* words) const { return message.find(words) != std::string::npos; }
};

void pull_the_plug() {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    fail("the test pulls the plug");
}

BOOST_DATA_TEST_CASE(a_silent_rank_ends_the_run_on_all,
                     data::make({TransportKind::copy, TransportKind::nccl}) * data::make({"ring", "joined-ring:1"}),
                     transport, schedule) {
    Failing ring(schedule, 2, transport, 5);
    ring.run(silent_rank_fabric(transport, 1));
    // Whoever sees it first: the issuing thread, or a launch under way.
    const bool is_named =
        ring.says("has not ended after 5 s without progress") || ring.says("has waited 5 s for what rank");
    BOOST_TEST(is_named, ring.message);
}

// The others wait on their devices for what will not come, and are the last to let go.
BOOST_DATA_TEST_CASE(a_rank_that_fails_ends_the_run_on_all,
                     data::make({TransportKind::copy, TransportKind::nccl}) * data::make({0, 1}), transport, failing) {
    Failing ring("ring", 2, transport, 120);
    ring.run(silent_rank_fabric(transport, failing, pull_the_plug));
    BOOST_TEST(ring.says("the test pulls the plug"), ring.message);
}

// Rank 1 receives by copy engines and sends by NCCL. It fails, or falls silent.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(has_four_gpus))
BOOST_DATA_TEST_CASE(a_rank_between_hosts_ends_the_run_on_all,
                     data::make({"ring", "joined-ring:1"}) * data::make({false, true}), schedule, fails) {
    const PretendedHosts hosts(2);
    Failing ring(schedule, 4, TransportKind::mixed, 5);
    ring.run(silent_rank_fabric(TransportKind::mixed, 1, [=] {
        if (fails) pull_the_plug();
    }));
    BOOST_TEST(ring.says(fails ? "the test pulls the plug" : "has not ended after 5 s"), ring.message);
}

// The launch that waits for it has begun: it must end by itself, and nothing be left running.
BOOST_AUTO_TEST_CASE(a_launch_that_waits_for_a_copy_that_never_comes_ends_with_a_named_operation) {
    Failing ring("pull:2", 2, TransportKind::copy, 3);
    ring.run(stuck_fetches_fabric(1));
    BOOST_TEST(ring.says("fetch K,V of block 0"), ring.message);
    BOOST_TEST(ring.says("3 s"), ring.message);
    agrees_with_the_reference(ring.c);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
