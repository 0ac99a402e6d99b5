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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
