#include "scenario.hpp"
#include "sim/recurrence/max_plus.hpp"

#include <boost/test/unit_test.hpp>

// Schedules that no user can name, for what ring and all-gather never do.

using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::HeadRange;
using ringlab::layouts::Op;
using ringlab::layouts::OpIndex;
using ringlab::layouts::OpKind;
using ringlab::layouts::Ops;
using ringlab::layouts::Part;
using ringlab::layouts::Pool;
using ringlab::layouts::Schedule;

namespace {

/// Takes the whole problem from a schedule that has a name.
class TestSchedule : public Schedule {
public:
    explicit TestSchedule(const Schedule& like)
        : Schedule(like.problem(), like.mask(), like.layout(), like.options()) {}

protected:
    Part keys_of(int rank) const { return part(rank, kv_heads()); }
    Part rows_of(int rank) const { return part(rank, query_heads()); }
};

/// An all-gather in which every block goes in pieces, on a channel each.
class PiecewiseGather : public TestSchedule {
public:
    PiecewiseGather(const Schedule& like, int pieces) : TestSchedule(like), pieces_(pieces) {
        set_channels(std::vector<std::string>(static_cast<std::size_t>(pieces), "K,V"));
        add_slots(Pool::kv, 2, kv_heads().count(), layout().largest_shard());
    }

    Ops ops(int rank) const override {
        std::array<OpIndex, 2> attended{-1, -1};  // by slot, less 1
        Op op = attend(0, rows_of(rank), keys_of(rank), 0, 0);
        op.begins = true;
        op.ends = ranks() == 1;
        co_yield op;
        for (int distance = 1; distance < ranks(); ++distance) {
            const int ahead = (rank + distance) % ranks(), behind = (rank - distance + ranks()) % ranks();
            auto& free = attended[static_cast<std::size_t>(distance % 2)];
            const auto slot_free = free;
            for (int channel = 0; channel < pieces_; ++channel) {
                co_yield transfer(OpKind::send, channel, Pool::kv, distance, ahead, piece(rank, channel), 0);
                op = transfer(OpKind::receive, channel, Pool::kv, distance, behind, piece(behind, channel),
                              1 + distance % 2);
                op.run_after(slot_free);
                const auto arrival = co_yield op;
                op = attend(distance, rows_of(rank), piece(behind, channel), 0, 1 + distance % 2);
                op.ends = distance == ranks() - 1 && channel == pieces_ - 1;
                op.run_after(arrival);
                free = co_yield op;
            }
        }
    }

private:
    Part piece(int rank, int channel) const {
        auto keys = keys_of(rank);
        const auto tokens = keys.tokens.end;
        keys.tokens = {tokens * channel / pieces_, tokens * (channel + 1) / pieces_};
        return keys;
    }

    int pieces_;
};

/// Two ranks that both receive before they send.
class BothWait : public TestSchedule {
public:
    explicit BothWait(const Schedule& like) : TestSchedule(like) {
        set_channels({"K,V"});
        add_slots(Pool::kv, 1, kv_heads().count(), layout().largest_shard());
    }

    Ops ops(int rank) const override {
        const int peer = 1 - rank;
        const auto arrival = co_yield transfer(OpKind::receive, 0, Pool::kv, 0, peer, keys_of(peer), 1);
        auto op = transfer(OpKind::send, 0, Pool::kv, 0, peer, keys_of(rank), 0);
        op.run_after(arrival);
        co_yield op;
    }
};

/// Every rank attends to a block that is put together from all shards.
class JoinedBlock : public TestSchedule {
public:
    explicit JoinedBlock(const Schedule& like) : TestSchedule(like) { add_block({{0, 1, problem().tokens}}); }

    Ops ops(int rank) const override { co_yield attend(0, rows_of(rank), keys_of(ranks()), 0, 0); }
};

auto says(const std::string& text) {
    return [text](const ringlab::Error& error) {
        BOOST_TEST_MESSAGE(error.what());
        return std::string(error.what()).find(text) != std::string::npos;
    };
}

SimOptions traced_options(ComputeModel compute, bool sharing) {
    SimOptions options;
    options.trace = true;
    options.compute = compute;
    options.sharing = sharing;
    options.jitter.start_skew_seconds = 30e-6;
    return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(channels)

BOOST_AUTO_TEST_CASE(any_number_of_channels_is_the_same_to_the_event_queue_and_to_max_plus) {
    std::mt19937 bits(21);
    const auto machine = busy_machine();
    for (int pieces = 1; pieces <= 8; ++pieces)
        for (int trial = 0; trial < 12; ++trial) {
            auto scenario = random_scenario(bits);
            scenario.pass = ringlab::layouts::Pass::forward;
            scenario.accumulation = ringlab::layouts::Accumulation::carry;
            const PiecewiseGather schedule(*scenario.schedule(), pieces);
            const auto compute = trial % 2 ? ComputeModel::tiles : ComputeModel::rate;
            const auto alone = simulate(schedule, machine, traced_options(compute, false));
            const auto recurrence = max_plus(schedule, machine, traced_options(compute, false));
            BOOST_REQUIRE_EQUAL(alone.timeline.spans.size(), recurrence.spans.size());
            int last_lane = 0;
            for (std::size_t i = 0; i < recurrence.spans.size(); ++i) {
                const auto &a = alone.timeline.spans[i], &b = recurrence.spans[i];
                BOOST_REQUIRE_MESSAGE(a.posted == b.posted && a.begin == b.begin && a.end == b.end && a.lane == b.lane,
                                      scenario.describe()
                                          << ", " << pieces << " pieces: rank " << a.rank << " operation " << a.op);
                last_lane = std::max(last_lane, a.lane);
            }
            BOOST_TEST(last_lane == (scenario.ranks == 1 ? 0 : 2 * pieces));
            const auto shared = simulate(schedule, machine, traced_options(compute, true));
            BOOST_TEST(shared.makespan >= alone.makespan);
        }
}

BOOST_AUTO_TEST_CASE(the_symmetric_recurrence_holds_for_any_number_of_channels) {
    for (const int pieces : {1, 3, 12})
        for (const auto* mask : {"full", "causal"}) {
            const PiecewiseGather schedule(*Scenario{.ranks = 8, .mask = mask}.schedule(), pieces);
            const auto options = [] {
                auto traced = traced_options(ComputeModel::rate, false);
                traced.trace = false;
                return traced;
            }();
            const auto ends = max_plus_symmetric(schedule, busy_machine(), options);
            const auto timeline = max_plus(schedule, busy_machine(), options);
            const auto expected = ringlab::layouts::totals(timeline);
            for (std::size_t rank = 0; rank < ends.size(); ++rank) BOOST_TEST(ends[rank] == expected[rank].end);
        }
}

BOOST_AUTO_TEST_CASE(more_channels_than_the_event_queue_has_room_for_are_refused) {
    const PiecewiseGather schedule(*Scenario{}.schedule(), 16);
    BOOST_CHECK_EXCEPTION(simulate(schedule, busy_machine(), {}), ringlab::Error,
                          says("has 16 channels; the simulator has room for 15"));
}

BOOST_AUTO_TEST_CASE(a_schedule_whose_transfers_wait_for_each_other_is_refused) {
    const BothWait schedule(*Scenario{.ranks = 2}.schedule());
    auto options = rate_options();
    BOOST_CHECK_EXCEPTION(simulate(schedule, busy_machine(), options), ringlab::Error,
                          says("cannot be finished: operation 1 of rank 0 (send, peer 1) waits for ever"));
    options.sharing = false;
    BOOST_CHECK_EXCEPTION(max_plus(schedule, busy_machine(), options), ringlab::Error,
                          says("operation 1 of rank 0 (send, peer 1) waits for ever"));
}

BOOST_AUTO_TEST_CASE(the_symmetric_recurrence_refuses_blocks_that_are_no_shard) {
    const JoinedBlock schedule(*Scenario{.ranks = 4, .mask = "full"}.schedule());
    auto options = rate_options();
    options.sharing = false;
    BOOST_CHECK_EXCEPTION(max_plus_symmetric(schedule, busy_machine(), options), ringlab::Error, says("block 4"));
}

BOOST_AUTO_TEST_SUITE_END()
