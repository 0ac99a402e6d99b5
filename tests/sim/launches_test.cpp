// Attends that are one launch, and the order of their work tiles.

#include "sim/cost/cost.hpp"
#include "sim/play/simulate.hpp"
#include "sim/tiles/list_scheduling.hpp"
#include "tests/sim/scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>

namespace ringlab::sim {
namespace {

using layouts::OpKind;
using layouts::Pass;
using test::Scenario;

constexpr Picoseconds microsecond = 1'000'000;

/// 4 tiles of rows and as many of keys a block, a microsecond each, on three SMs.
Machine three_sms() {
    Machine machine;
    machine.sms = 3;
    for (auto* cost : {&machine.forward, &machine.backward}) {
        cost->tile_rows = cost->tile_keys = 16;
        cost->full_tile_seconds = cost->partial_tile_seconds = 1e-6;
    }
    machine.backward.work_tile = WorkTile::key_tile;
    return machine;
}

Scenario two_blocks(Pass pass) {
    return {.ranks = 2,
            .tokens_per_rank = 64,
            .layout = "contiguous",
            .mask = "full",
            .schedule_name = "pull:1",
            .pass = pass,
            .query_heads = 2,
            .kv_heads = 2};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(launches)

// 8 work tiles of 4 + 4 tiles: three waves of 8, where two launches would have 3 x 4 each and no tail at all 64 / 3.
BOOST_AUTO_TEST_CASE(attends_that_are_one_launch_take_as_long_as_their_work_tiles_together) {
    for (const auto pass : {Pass::forward, Pass::backward}) {
        const auto schedule = two_blocks(pass).schedule();
        const auto found = simulate(*schedule, three_sms());
        // Backward: 8 work tiles of each block with 4 tiles, in six waves.
        BOOST_TEST(found.ranks[0].compute == (pass == Pass::forward ? 3 * 8 : 6 * 4) * microsecond, to_string(pass));
    }
}

// Until the other block is there, the first wave has done its own 4 tiles of 8 and waits.
BOOST_AUTO_TEST_CASE(work_tiles_of_a_launch_wait_in_place_for_a_block_that_is_late) {
    const auto schedule = two_blocks(Pass::forward).schedule();
    auto machine = three_sms();
    machine.inside_host.latency_seconds = 10e-6;
    BOOST_TEST(simulate(*schedule, machine).ranks[0].end == (10 + 3 * 8 - 4) * microsecond);
    machine.inside_host.latency_seconds = 3e-6;
    BOOST_TEST(simulate(*schedule, machine).ranks[0].end == 3 * 8 * microsecond);
}

// The last rank sees 16 keys of the first one's block. Of its rows' four tiles one meets two tiles of keys and one
// three: with an SM for every work tile all is done when that one is, whatever heads come one after another.
BOOST_AUTO_TEST_CASE(groups_of_heads_lie_beside_each_other_however_long_one_work_tile_is) {
    auto scenario = two_blocks(Pass::forward);
    scenario.mask = "causal+documents:48,32,48";
    scenario.schedule_name = "pull:2";
    auto machine = three_sms();
    machine.sms = 64;
    const auto schedule = scenario.schedule();
    BOOST_TEST(simulate(*schedule, machine).ranks[1].compute == 3 * microsecond);
}

/// Two blocks in two groups of a kv head each: attends of four work tiles of 4 us, and the launch on three SMs has
/// done them after 8, 12, 16 and 24 us.
Scenario two_rings_of_heads() {
    auto scenario = two_blocks(Pass::backward);
    scenario.schedule_name = "joined-ring:2";
    return scenario;
}

// The second attend adds to what the peer's first one leaves, which comes a latency after 8 us. Until then two of its
// work tiles are held by SMs since 4 us and one since 8; the fourth begins at 11, and the attend has ended at 15, the
// third at 19. The last one adds to what the peer's third one leaves, at 22: three work tiles are held, the fourth
// takes until 26. Spans are from when all has arrived: 8, 4, 4 and 4 us.
BOOST_AUTO_TEST_CASE(work_tiles_of_a_launch_have_begun_before_the_gradient_that_they_add_to_has_arrived) {
    const auto schedule = two_rings_of_heads().schedule();
    auto machine = three_sms();
    machine.inside_host.latency_seconds = 3e-6;
    SimOptions options;
    options.trace = true;
    const auto soon = simulate(*schedule, machine, options);
    BOOST_TEST(soon.makespan == 26 * microsecond);
    BOOST_TEST(soon.ranks[0].compute == 20 * microsecond);
    // At 14 us instead of 11, the attend has ended at 18, the third one at 22; and at 30, since the second one's
    // gradient is on its way from 18 to 24.
    machine.inside_host.latency_seconds = 6e-6;
    const auto late = simulate(*schedule, machine, options);
    BOOST_TEST(late.makespan == 34 * microsecond);
    BOOST_TEST(late.ranks[0].compute == 20 * microsecond);
    for (const auto& span : late.timeline.spans)
        if (span.rank == 0 && span.kind == OpKind::attend) BOOST_TEST(span.end - span.begin >= span.busy);
    // Both ranks do the same, so one stands for both.
    options.sharing = false;
    machine.transfer_issue_seconds = 1.3e-6;
    const auto alone = play_one_rank(*schedule, machine, options, 0);
    BOOST_TEST(layouts::to_picoseconds(alone.seconds) == simulate(*schedule, machine, options).makespan);
}

// Two of 8 tiles of keys are seen, by 2 tiles of rows and by one, the others by none. Of 4 heads the kernel takes the
// longer half of the work tiles head by head: 2 1 0 0, 2 1 0 0, and so on. On 4 SMs the last work tile of two tiles
// begins at 2; were all of them begun first, the launch would take 3.
BOOST_AUTO_TEST_CASE(work_tiles_of_keys_begin_in_the_order_of_the_kernel) {
    Scenario scenario = two_blocks(Pass::backward);
    scenario.query_heads = scenario.kv_heads = 4;
    scenario.tokens_per_rank = 128;
    scenario.mask = "window:32,0";
    const auto schedule = scenario.schedule();
    auto machine = three_sms();
    machine.sms = 4;
    const auto seconds =
        TileModel(*schedule, machine).attend(schedule->part(1, {0, 4}), schedule->part(0, {0, 4}), {}).alone;
    BOOST_TEST(seconds == 4e-6, boost::test_tools::tolerance(1e-9));
}

// Query tiles of 3 us and 1 us, of three heads with K and V of 8.4 MB each: head by head two SMs take 3 1 3 1 3
// 1 in 7 us, where the longest of all heads first would be 6.
BOOST_AUTO_TEST_CASE(query_tiles_are_ordered_by_the_heads_whose_keys_the_cache_holds) {
    const Scenario scenario{
        .ranks = 1, .tokens_per_rank = 16384, .layout = "contiguous", .query_heads = 3, .kv_heads = 3};
    const auto schedule = scenario.schedule();
    auto machine = three_sms();
    machine.sms = 2;
    machine.forward.tile_rows = machine.forward.tile_keys = 8192;
    machine.forward.full_tile_seconds = 2e-6;
    const auto seconds = [&] {
        return TileModel(*schedule, machine).attend(schedule->part(0, {0, 3}), schedule->part(0, {0, 3}), {}).alone;
    };
    const auto exactly = boost::test_tools::tolerance(1e-9);
    BOOST_TEST(seconds() == 6e-6, exactly);  // nothing is known of a cache
    machine.cache_bytes = 1e12;
    BOOST_TEST(seconds() == 7e-6, exactly);
}

// A stretch of a rank's attends up to one that waits for one of them: 8 us each, and the last one for what has
// travelled.
BOOST_AUTO_TEST_CASE(over_kernels_a_launch_ends_where_an_attend_waits_for_one_of_its_own) {
    const auto schedule = two_rings_of_heads().schedule();
    auto machine = three_sms();
    machine.inside_host.carrier = LinkCost::Carrier::kernels;
    machine.inside_host.latency_seconds = 3e-6;
    SimOptions options;
    options.sharing = false;
    // The first attend; behind its gradient's way the second and the third in one launch; behind theirs the fourth.
    BOOST_TEST(simulate(*schedule, machine, options).makespan == (8 + 3 + 12 + 3 + 8) * microsecond);
}

// Where transfers are kernels, what waits for nothing is a launch and the rest another: 12 each.
BOOST_AUTO_TEST_CASE(a_launch_does_not_wait_inside_for_transfers_that_are_kernels) {
    const auto schedule = two_blocks(Pass::forward).schedule();
    auto machine = three_sms();
    machine.forward.launch_seconds = 1e-6;
    machine.inside_host.carrier = LinkCost::Carrier::kernels;
    machine.inside_host.latency_seconds = 40e-6;
    SimOptions options;
    options.sharing = false;
    BOOST_TEST(simulate(*schedule, machine, options).ranks[0].end == (40 + 1 + 12) * microsecond);
    machine.inside_host.latency_seconds = 5e-6;
    BOOST_TEST(simulate(*schedule, machine, options).ranks[0].end == 2 * (1 + 12) * microsecond);
}

// Two SMs, work tiles of 4, 3, 2 and 1 us that add to what comes at 10 us: by then both hold a work tile, and 2 and 1
// are left. Of work tiles that wait for their block before they begin, all are.
BOOST_AUTO_TEST_CASE(sms_hold_the_work_tiles_that_wait) {
    const WorkTileGroup work_tiles[] = {{4, 1}, {3, 1}, {2, 1}, {1, 1}};
    const auto end_of = [&](double begin, double end) {
        ListScheduler two(2);
        double last = 0;
        for (const auto& some : work_tiles) last = std::max(last, two.give(some, begin, end));
        return last;
    };
    BOOST_TEST(end_of(0, 0) == 5);
    BOOST_TEST(end_of(0, 10) == 12);
    BOOST_TEST(end_of(10, 0) == 15);
    BOOST_TEST(end_of(0, 2) == 5);
}

// SMs that no work tile of a block is left for go on to the next block's.
BOOST_AUTO_TEST_CASE(sms_without_a_work_tile_that_waits_go_on) {
    ListScheduler three(3);
    BOOST_TEST(three.give({4, 2}, 0, 10) == 10);
    BOOST_TEST(three.give({1, 3}) == 3);
}

// A causal block has work tiles of 16 tiles to 1: alone they leave half of 32 SMs idle, so two share each and have
// done it in 8 us. With the blocks behind it there is work for all: a work tile is one SM's, and the first block is
// done after 16 us.
BOOST_AUTO_TEST_CASE(a_launch_shares_work_tiles_as_all_its_blocks_say) {
    auto scenario = two_blocks(Pass::backward);
    scenario.mask = "causal";
    scenario.tokens_per_rank = 256;
    auto machine = three_sms();
    machine.sms = 32;
    machine.backward.groups = {{2, 16}};
    const auto schedule = scenario.schedule();
    TileModel tiles(*schedule, machine);
    std::vector<TileModel::FusedAttend> attends;
    auto ops = schedule->ops(1);
    while (const auto* op = ops.next())
        if (op->kind == OpKind::attend) attends.push_back({op->rows(), op->part, op->begins, op->ends, false});
    BOOST_TEST_REQUIRE(attends.size() > 1u);
    const auto together = tiles.fused_times(attends), alone = tiles.fused_times(std::span(attends).first(1));
    const auto exactly = boost::test_tools::tolerance(1e-9);
    BOOST_TEST(together.front() == 16e-6, exactly);
    BOOST_TEST(alone.front() == 8e-6, exactly);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
