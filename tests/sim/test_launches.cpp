// What hosts issue first, and attends that are one launch.

#include "sim/simulate.hpp"
#include "tests/sim/scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>

namespace ringlab::sim {
namespace {

using layouts::OpKind;
using layouts::Pass;
using test::Scenario;

/// When the first operation of a kind was posted on rank 0.
Picoseconds first_posted(const Prediction& prediction, OpKind kind) {
    const auto& spans = prediction.timeline.spans;
    const auto found =
        std::ranges::find_if(spans, [&](const layouts::Span& span) { return span.rank == 0 && span.kind == kind; });
    return found->posted;
}

constexpr Picoseconds microsecond = 1'000'000;

/// 4 tiles of rows and as many of keys a block, a microsecond each, on three multiprocessors.
Machine three_processors() {
    Machine machine;
    machine.multiprocessors = 3;
    for (auto* cost : {&machine.forward, &machine.backward}) {
        cost->tile_rows = cost->tile_keys = 16;
        cost->full_tile_seconds = cost->partial_tile_seconds = 1e-6;
    }
    machine.backward.item = Item::key_tile;
    return machine;
}

Scenario two_blocks(Pass pass) {
    return {.ranks = 2,
            .tokens_per_rank = 64,
            .layout = "contiguous",
            .mask = "full",
            .algorithm = "pull:1",
            .pass = pass,
            .query_heads = 2,
            .kv_heads = 2};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(launches)

BOOST_AUTO_TEST_CASE(computing_is_issued_before_transfers_that_take_no_multiprocessors) {
    const Scenario scenario{.ranks = 2, .mask = "full"};
    const auto schedule = scenario.schedule();
    Machine machine;
    machine.pass_issue_seconds = 3e-6;
    machine.compute_issue_seconds = 1e-6;
    machine.transfer_issue_seconds = 2e-6;
    SimOptions options;
    options.trace = true;
    const auto copies = simulate(*schedule, machine, options);
    BOOST_TEST(first_posted(copies, OpKind::attend) == 4 * microsecond);
    BOOST_TEST(first_posted(copies, OpKind::send) == 6 * microsecond);
    BOOST_TEST(first_posted(copies, OpKind::receive) == 8 * microsecond);
    machine.multiprocessors = 8;
    machine.inside_host.multiprocessors_per_channel = 1;
    const auto kernels = simulate(*schedule, machine, options);
    BOOST_TEST(first_posted(kernels, OpKind::send) == 5 * microsecond);
    BOOST_TEST(first_posted(kernels, OpKind::receive) == 7 * microsecond);
    BOOST_TEST(first_posted(kernels, OpKind::attend) == 8 * microsecond);
}

// 8 items of 4 + 4 tiles: three waves of 8, where two launches would have 3 x 4 each and no tail at all 64 / 3.
BOOST_AUTO_TEST_CASE(attends_that_are_one_launch_take_as_long_as_their_items_together) {
    for (const auto pass : {Pass::forward, Pass::backward}) {
        const auto schedule = two_blocks(pass).schedule();
        const auto found = simulate(*schedule, three_processors());
        // Backward: 8 items of each block with 4 tiles, in six waves.
        BOOST_TEST(found.ranks[0].compute == (pass == Pass::forward ? 3 * 8 : 6 * 4) * microsecond, to_string(pass));
    }
}

// Until the other block is there, the first wave has done its own 4 tiles of 8 and waits.
BOOST_AUTO_TEST_CASE(items_of_a_launch_wait_in_place_for_a_block_that_is_late) {
    const auto schedule = two_blocks(Pass::forward).schedule();
    auto machine = three_processors();
    machine.inside_host.latency_seconds = 10e-6;
    BOOST_TEST(simulate(*schedule, machine).ranks[0].end == (10 + 3 * 8 - 4) * microsecond);
    machine.inside_host.latency_seconds = 3e-6;
    BOOST_TEST(simulate(*schedule, machine).ranks[0].end == 3 * 8 * microsecond);
}

// Where transfers are kernels, what waits for nothing is a launch and the rest another: 12 each.
BOOST_AUTO_TEST_CASE(a_launch_does_not_wait_inside_for_transfers_that_are_kernels) {
    const auto schedule = two_blocks(Pass::forward).schedule();
    auto machine = three_processors();
    machine.forward.launch_seconds = 1e-6;
    machine.inside_host.multiprocessors_per_channel = 1e-9;
    machine.inside_host.latency_seconds = 40e-6;
    SimOptions options;
    options.sharing = false;
    BOOST_TEST(simulate(*schedule, machine, options).ranks[0].end == (40 + 1 + 12) * microsecond);
    machine.inside_host.latency_seconds = 5e-6;
    BOOST_TEST(simulate(*schedule, machine, options).ranks[0].end == 2 * (1 + 12) * microsecond);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
