#include "sim/cost/host_clock.hpp"

#include "sim/cost/cost.hpp"
#include "sim/play/simulate.hpp"
#include "sim/recurrence/max_plus.hpp"
#include "tests/sim/scenario.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::sim {
namespace {

using layouts::Op;
using layouts::OpIndex;
using layouts::OpKind;

constexpr Picoseconds microsecond = 1'000'000, transfer = 10 * microsecond, compute = 2 * microsecond;

/// A host that takes 10 us for a transfer and 2 us for a launch, and keeps when it issued each operation.
class Host {
public:
    explicit Host(bool computes_first) : clock_({}, computes_first, transfer) {}

    OpIndex give(Op op) {
        const auto self = static_cast<OpIndex>(issued.size());
        issued.push_back(clock_.issue(op, self, op.transfers() ? transfer : compute,
                                      [&](OpIndex one, Picoseconds delay) { issued[at(one)] += delay; }));
        return self;
    }
    OpIndex give_transfer(OpKind kind, std::int16_t channel = 0, int peer = 1) {
        Op op;
        op.kind = kind;
        op.channel = channel;
        op.peer = peer;
        op.pool = layouts::Pool::kv;
        return give(op);
    }
    OpIndex give_attend(OpIndex after = -1) {
        Op op;
        if (after >= 0) op.run_after(after);
        return give(op);
    }

    std::vector<Picoseconds> issued;

private:
    static std::size_t at(OpIndex op) { return static_cast<std::size_t>(op); }
    HostClock clock_;
};

/// Three messages that come in, an attend that waits for none of them, and one for each.
std::vector<Picoseconds> gathered(bool computes_first) {
    Host host(computes_first);
    for (int peer = 1; peer <= 3; ++peer) host.give_transfer(OpKind::send, 0, peer);
    host.give_attend();
    for (OpIndex message = 0; message < 3; ++message) host.give_attend(message);
    return host.issued;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(host_clock)

// The second one, a receive, is posted 10 us later, unless nothing was in its slot.
BOOST_AUTO_TEST_CASE(a_copy_into_a_fresh_slot_begins_with_its_senders_part) {
    for (const bool is_fresh : {false, true}) {
        HostClock host({}, true, transfer);
        const auto none = [](OpIndex, Picoseconds) {};
        Op op;
        op.channel = 0;
        op.pool = layouts::Pool::kv;
        op.kind = OpKind::send;
        BOOST_TEST(host.issue(op, 0, transfer, none) == transfer);
        op.kind = OpKind::receive;
        if (!is_fresh) op.run_after(0);
        BOOST_TEST(host.issue(op, 1, transfer, none) == (is_fresh ? 1 : 2) * transfer);
        BOOST_TEST(host.state().now == 2 * transfer);
    }
}

BOOST_AUTO_TEST_CASE(what_is_given_is_issued_in_order_where_transfers_take_sms) {
    const auto issued = gathered(false);
    for (std::size_t op = 0; op < issued.size(); ++op)
        BOOST_TEST(issued[op] == (op < 3 ? (static_cast<Picoseconds>(op) + 1) * transfer
                                         : 3 * transfer + (static_cast<Picoseconds>(op) - 2) * compute));
}

// The first at once, which puts messages off by 2 us; the others behind the message that they wait for, of which one is
// issued at 12, 22 and 32 us, and behind each other.
BOOST_AUTO_TEST_CASE(an_attend_is_issued_behind_the_message_that_it_waits_for_and_not_behind_all) {
    const std::vector<Picoseconds> expected{12 * microsecond, 22 * microsecond, 32 * microsecond, 2 * microsecond,
                                            14 * microsecond, 24 * microsecond, 34 * microsecond};
    BOOST_TEST(gathered(true) == expected, boost::test_tools::per_element());
}

// A ring: the attend of a step goes before its messages, and behind those of the step before.
BOOST_AUTO_TEST_CASE(an_attend_of_a_ring_is_issued_before_the_messages_of_its_step) {
    Host host(true);
    OpIndex arrived = -1;
    for (int step = 0; step < 3; ++step) {
        host.give_transfer(OpKind::send);
        const auto message = host.give_transfer(OpKind::send, 1);
        host.give_attend(std::exchange(arrived, message));
        const auto begin = step * (2 * transfer + compute), attend = begin + compute;
        const auto first = static_cast<std::size_t>(3 * step);
        BOOST_TEST(host.issued[first] == attend + transfer);
        BOOST_TEST(host.issued[first + 1] == attend + 2 * transfer);
        BOOST_TEST(host.issued[first + 2] == attend);
    }
}

BOOST_AUTO_TEST_CASE(a_message_follows_one_on_its_channel_with_its_peer) {
    const auto of = [](OpKind kind, std::int16_t channel, int peer) {
        Op op;
        op.kind = kind;
        op.channel = channel;
        op.peer = peer;
        return op;
    };
    const auto first = of(OpKind::send, 1, 0);
    const auto follows = [&](const Op& next) {
        HostClock host({}, true, transfer);
        const auto none = [](OpIndex, Picoseconds) {};
        if (host.follows(first)) return true;
        host.issue(first, 0, transfer, none);
        const auto found = host.follows(next);
        host.issue(Op{}, 1, compute, none);
        return found || host.follows(next);
    };
    BOOST_TEST(follows(first));
    BOOST_TEST(!follows(of(OpKind::send, 0, 0)));
    BOOST_TEST(!follows(of(OpKind::send, 1, 1)));
    BOOST_TEST(!follows(of(OpKind::receive, 1, 0)));
    BOOST_TEST(!follows(Op{}));
}

// Every rank sends two ranges of 16 keys to the other: the second of a row takes the host 1 us less than the first.
BOOST_AUTO_TEST_CASE(a_message_right_behind_another_takes_the_host_less_where_the_machine_file_says) {
    auto scenario = test::Scenario{.ranks = 2, .tokens_per_rank = 64, .layout = "striped:16"};
    scenario.algorithm = "seen:1";
    scenario.mask = "causal+documents:48,16,64";
    const auto schedule = scenario.schedule();
    auto machine = test::cell_machine(scenario);
    machine.gpus_per_host = machine.nics_per_host = 2;
    machine.transfer_issue_seconds = 3e-6;
    auto options = test::rate_options();
    options.sharing = false;
    const auto ends = [&] { return simulate(*schedule, machine, options).makespan; };
    const auto alike = ends();
    machine.next_transfer_issue_seconds = 2e-6;
    CostModel cost(*schedule, machine, options);
    Picoseconds saved = 0;
    for (int rank = 0; rank < 2; ++rank) {
        auto host = cost.host_clock(0);
        auto ops = schedule->ops(rank);
        OpIndex index = 0;
        Picoseconds mine = 0;
        while (const auto* op = ops.next()) {
            if (host.follows(*op)) mine += microsecond;
            host.issue(*op, index++, cost.issue(*op, host.follows(*op)), [](OpIndex, Picoseconds) {});
        }
        saved = std::max(saved, mine);
    }
    BOOST_TEST(saved > 0);
    BOOST_TEST(ends() < alike);
    BOOST_TEST(ends() >= alike - saved);
    Picoseconds last = 0;
    for (const auto& span : max_plus(*schedule, machine, options).spans) last = std::max(last, span.end);
    BOOST_TEST(ends() == last);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
