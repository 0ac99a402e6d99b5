#include "recursion.hpp"
#include "scenario.hpp"

#include <boost/test/unit_test.hpp>

// Schedules that no user can name, for what ring and all-gather never do.

using namespace ringlab;
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

auto says(const std::string& text) {
    return [text](const Error& error) {
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

BOOST_AUTO_TEST_CASE(any_number_of_channels_is_played) {
    std::mt19937 bits(21);
    const auto machine = busy_machine();
    for (const int pieces : {1, 2, 3, 5, 8, 12})
        for (int trial = 0; trial < 12; ++trial) {
            auto scenario = random_scenario(bits);
            scenario.pass = layouts::Pass::forward;
            scenario.accumulation = layouts::Accumulation::carry;
            const PiecewiseGather schedule(*scenario.schedule(), pieces);
            auto options = traced_options(trial % 2 ? ComputeModel::tiles : ComputeModel::rate, false);
            require_as_by_recursion(schedule, machine, options,
                                    fmt::format("{}, {} pieces", scenario.describe(), pieces));
            options.sharing = true;
            const auto shared = simulate(schedule, machine, options);
            BOOST_TEST(shared.makespan >= longest_chain(schedule, machine, options));
            int last_lane = 0;
            for (const auto& span : shared.timeline.spans) last_lane = std::max(last_lane, span.lane);
            BOOST_TEST(last_lane == (scenario.ranks == 1 ? 0 : 2 * pieces));
        }
}

BOOST_AUTO_TEST_CASE(more_channels_than_the_event_queue_has_room_for_are_refused) {
    const PiecewiseGather schedule(*Scenario{}.schedule(), 16);
    BOOST_CHECK_EXCEPTION(simulate(schedule, busy_machine(), {}), Error,
                          says("has 16 channels; the simulator has room for 15"));
}

BOOST_AUTO_TEST_SUITE_END()
