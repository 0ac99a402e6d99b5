#include "scenario.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::sim {
namespace {

using layouts::OpKind;
using TransferStart = AttentionCost::TransferStart;
using test::Scenario;

constexpr Picoseconds us = 1000000;

/// 12 SMs, two turns of 12 work tiles of 4 us for a block of the scenario; messages of 1 us and of whatever size
/// are a kernel on one SM at each end.
Machine twelve_sms(TransferStart start) {
    Machine machine;
    machine.sms = 12;
    machine.forward.tile_rows = machine.forward.tile_keys = 16;
    machine.forward.full_tile_seconds = machine.forward.partial_tile_seconds = 1e-6;
    machine.forward.transfer_start = start;
    machine.inside_host.latency_seconds = 1e-6;
    machine.inside_host.carrier = LinkCost::Carrier::kernels;
    machine.inside_host.sms_per_channel = 1;
    return machine;
}

struct Times {
    Picoseconds posted, begin, attended;
};

/// Of the message that a rank passes on, and the end of its first attend.
Times times_of(const Machine& machine) {
    const auto schedule =
        Scenario{.ranks = 3, .tokens_per_rank = 64, .layout = "contiguous", .mask = "full", .query_heads = 6}
            .schedule();
    SimOptions options;
    options.trace = true;
    Times times{};
    for (const auto& span : simulate(*schedule, machine, options).timeline.spans) {
        if (span.rank != 0) continue;
        if (span.kind == OpKind::send && span.step == 1) times.posted = span.posted, times.begin = span.begin;
        if (span.kind == OpKind::attend && span.step == 0) times.attended = span.end;
    }
    return times;
}

// Speeds are floats, of which the relative error is below 1e-7: 1 ps in 10 us.
void check(Picoseconds found, double expected_us) { BOOST_TEST(std::abs(double(found) - expected_us * us) <= 2); }

}  // namespace

BOOST_AUTO_TEST_SUITE(sm_admission)

// Own block out and neighbour's in, in the first us, hold 2 of 12: the attend loses a sixth of it. What has come is
// passed on at once, which costs as much again.
BOOST_AUTO_TEST_CASE(kernels_of_transfers_take_sms_at_once_where_nothing_else_is_said) {
    const auto times = times_of(twelve_sms(TransferStart::at_once));
    check(times.posted, 1);
    check(times.begin, 1);
    check(times.attended, 8 + 2.0 / 6);
}

// The second message waits for the attend, which is disturbed by the first alone.
BOOST_AUTO_TEST_CASE(kernels_of_transfers_wait_for_an_attend_whose_blocks_stay) {
    const auto times = times_of(twelve_sms(TransferStart::at_the_end));
    check(times.posted, 1);
    check(times.begin, 8 + 1.0 / 6);
    check(times.attended, 8 + 1.0 / 6);
}

// Ten SMs take three turns for what twelve do in two: while 2 are held, for 1 us from the beginning and for
// 1 us behind the first work tile, the attend runs at 2/3 of its speed.
BOOST_AUTO_TEST_CASE(kernels_of_transfers_wait_for_a_work_tile_and_attends_beside_them_take_whole_turns) {
    const auto times = times_of(twelve_sms(TransferStart::as_work_tiles_end));
    check(times.posted, 1);
    check(times.begin, 4);
    check(times.attended, 8 + 2.0 / 3);
}

namespace {

/// End of the first attend of a backward ring of two, whose block is 8 work tiles of a head's keys, on so many SMs.
Picoseconds first_backward_attend(double sms) {
    auto machine = twelve_sms(TransferStart::at_once);
    machine.sms = sms;
    machine.backward = machine.forward;
    machine.backward.work_tile = WorkTile::key_tile;
    machine.backward.transfer_start = TransferStart::as_work_tiles_end;
    machine.inside_host.halves = LinkCost::SmHoldStart::both_ready_backward;
    const auto schedule = Scenario{.ranks = 2,
                                   .tokens_per_rank = 64,
                                   .layout = "contiguous",
                                   .mask = "full",
                                   .pass = layouts::Pass::backward,
                                   .query_heads = 2}
                              .schedule();
    SimOptions options;
    options.trace = true;
    for (const auto& span : simulate(*schedule, machine, options).timeline.spans)
        if (span.rank == 0 && span.kind == OpKind::attend) return span.end;
    return 0;
}

}  // namespace

// Work tiles of 4 us. Own block out and neighbour's in hold 2 of 4 SMs for 1 us: two work tiles begin at once, two when
// these are there, and so again.
BOOST_AUTO_TEST_CASE(work_tiles_of_keys_get_sms_as_transfers_leave_them) { check(first_backward_attend(4), 9); }

// Eight work tiles leave 2 of 10 to them.
BOOST_AUTO_TEST_CASE(transfers_take_nothing_where_an_attend_has_fewer_work_tiles_than_sms) {
    check(first_backward_attend(10), 4);
    check(first_backward_attend(8), 5);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
