#include "sim/cost/messages.hpp"

#include "layouts/schedules/schedule.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/simulate.hpp"
#include "tests/sim/scenario.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::sim {
namespace {

using layouts::OpKind;
using layouts::Pass;

std::unique_ptr<Schedule> message_schedule(const std::string& schedule_name, Pass pass, std::int64_t tokens) {
    layouts::Problem problem;
    problem.tokens = tokens;
    problem.query_heads = 8;
    problem.kv_heads = 2;
    problem.head_dim = problem.value_dim = 64;
    return test::schedule_of(problem, "causal", "zigzag", 2, {schedule_name, pass});
}

std::vector<std::int64_t> pieces_received(const Schedule& schedule) {
    std::vector<std::int64_t> pieces;
    auto ops = schedule.ops(0);
    while (const auto* op = ops.next())
        if (op->kind == OpKind::receive) pieces.push_back(pieces_of(schedule, *op));
    return pieces;
}

/// Two GPUs whose messages are kernels of 8 blocks.
Machine two_gpus_with_kernels() {
    Machine machine;
    machine.gpus_per_host = machine.nics_per_host = 2;
    machine.sms = 100;
    machine.forward.full_tile_seconds = machine.forward.partial_tile_seconds = 1e-5;
    machine.backward = machine.forward;
    auto& link = machine.inside_host;
    link.link_bytes_per_second = 80e9;
    link.channels = {{std::numeric_limits<double>::infinity(), 8}};
    link.carrier = LinkCost::Carrier::kernels;
    link.sms_per_channel = 1;
    return machine;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(messages)

// A ring's blocks travel whole. Ulysses takes heads of all tokens together: half of 8 heads of q, and of K and V of 2
// heads the one that is wanted, each in its own place among the tokens of both ranks.
BOOST_AUTO_TEST_CASE(a_message_has_a_piece_for_each_head_where_a_block_is_not_whole) {
    BOOST_TEST(pieces_received(*message_schedule("ring", Pass::forward, 1024)) == std::vector<std::int64_t>{1},
               boost::test_tools::per_element());
    const auto ulysses = pieces_received(*message_schedule("ulysses", Pass::forward, 1024));
    BOOST_TEST_REQUIRE(ulysses.size() == 3u);
    BOOST_TEST(ulysses[0] == 4);  // q
    BOOST_TEST(ulysses[1] == 2);  // K and V
}

// Pass-q sends q, a state of three fields and an output of two, each of all heads; Ulysses receives heads of all
// tokens.
BOOST_AUTO_TEST_CASE(a_message_of_a_whole_block_is_not_cut) {
    const auto first_receive = [](const Schedule& schedule) {
        auto ops = schedule.ops(0);
        const auto* op = ops.next();
        while (op->kind != OpKind::receive) op = ops.next();
        return *op;
    };
    const auto pass_q = message_schedule("pass-q", Pass::forward, 1024);
    BOOST_TEST(!is_split_by_heads(*pass_q, first_receive(*pass_q)));
    BOOST_TEST(pieces_received(*pass_q).at(1) == 3);
    const auto ulysses = message_schedule("ulysses", Pass::forward, 1024);
    BOOST_TEST(is_split_by_heads(*ulysses, first_receive(*ulysses)));
}

BOOST_AUTO_TEST_CASE(pieces_take_longer) {
    auto machine = two_gpus_with_kernels();
    machine.inside_host.piece_seconds = 3e-6;
    machine.inside_host.pieces_bytes_per_second = 40e9;
    const auto schedule = message_schedule("ring", Pass::forward, 1024);
    const SimOptions options;
    CostModel cost(*schedule, machine, options);
    constexpr std::int64_t bytes = 80'000'000;
    BOOST_TEST(cost.transfer(0, 1, bytes).whole() == layouts::to_picoseconds(1e-3));
    BOOST_TEST(cost.transfer(0, 1, bytes, {.pieces = 5, .is_split_by_heads = true}).whole() ==
               layouts::to_picoseconds(2e-3 + 4 * 3e-6));
    // Numbers of a token beside its vectors: one piece is nearly all of it, and as quick as alone.
    BOOST_TEST(cost.transfer(0, 1, bytes, {.pieces = 3}).whole() == layouts::to_picoseconds(1e-3 + 2 * 3e-6));
    BOOST_TEST(cost.transfer(0, 1, bytes).sms == 8);
}

BOOST_AUTO_TEST_CASE(a_host_takes_longer_for_a_message_of_many_pieces) {
    auto machine = two_gpus_with_kernels();
    machine.transfer_issue_seconds = 10e-6;
    machine.inside_host.piece_issue_seconds = 2e-6;
    const auto schedule = message_schedule("ulysses", Pass::forward, 1024);
    const SimOptions options;
    const CostModel cost(*schedule, machine, options);
    auto ops = schedule->ops(0);
    const auto* op = ops.next();
    while (op->kind != OpKind::receive) op = ops.next();
    BOOST_TEST(cost.issue(*op, false) == layouts::to_picoseconds(16e-6));  // of 4 pieces
}

// Of two ranks, one starts later by more than its peer's pass takes: a receive that waits for it holds 8 of 100
// multiprocessors all the time, unless it begins when the send does.
BOOST_AUTO_TEST_CASE(halves_that_begin_together_hold_nothing_while_one_waits) {
    auto machine = two_gpus_with_kernels();
    machine.inside_host.piece_seconds = 1e-12;  // so that messages are looked at
    const auto schedule = message_schedule("ring", Pass::backward, 4096);
    SimOptions options;
    options.start = {0, layouts::to_picoseconds(1)};
    const auto own_attend = [&] { return simulate(*schedule, machine, options).ranks[0].compute; };
    const auto apart = own_attend();
    machine.inside_host.halves = LinkCost::SmHoldStart::both_ready_backward;
    const auto together = own_attend();
    options.sharing = false;
    const auto undisturbed = own_attend();
    BOOST_TEST(apart - undisturbed > 0.05 * static_cast<double>(undisturbed));
    // While the message itself is under way it still does.
    BOOST_TEST(4 * (together - undisturbed) < apart - undisturbed);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
