#pragma once

#include "scenario.hpp"
#include "sim/cost/cost.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

namespace ringlab::sim::test {

/// A pass in which nothing is shared, by recursion over its operations: each begins at the maximum of the ends that it
/// waits for, on its lane, by Op::after() and at the peer, and ends after its price. It has nothing in common with the
/// simulator but the prices.
class Recursion {
public:
    struct Times {
        Picoseconds posted = 0, begin = 0, end = -1;  // end -1: not known yet
    };

    /// All arguments must outlive it.
    Recursion(const Schedule& schedule, const Machine& machine, const SimOptions& options)
        : cost_(schedule, machine, options), ranks_(static_cast<std::size_t>(schedule.ranks())) {
        for (int rank = 0; rank < schedule.ranks(); ++rank) read(schedule, rank);
    }

    /// By rank and operation.
    std::vector<std::vector<Times>> play() {
        for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
            for (std::size_t i = 0; i < of(rank).ops.size(); ++i) end(rank, i);
        std::vector<std::vector<Times>> all;
        for (auto& rank : ranks_) all.push_back(rank.times);
        return all;
    }

private:
    struct Rank {
        std::vector<Op> ops;
        std::vector<Picoseconds> issued;
        std::vector<std::size_t> number;  // of a message among those of its channel and direction
        std::vector<Times> times;
    };
    using Channel = std::tuple<int, int, int, bool>;  // from, to, channel, sends

    Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

    static Channel channel_of(int rank, const Op& op, bool sends) {
        const bool out = op.kind == layouts::OpKind::send;
        return {out ? rank : op.peer, out ? op.peer : rank, op.channel, sends};
    }

    void read(const Schedule& schedule, int rank) {
        auto& self = of(rank);
        auto host = cost_.start(rank);
        PartlyFilledSlots slots;
        auto stream = schedule.ops(rank);
        while (const auto* op = stream.next()) {
            host += cost_.issue(*op, slots.had_part(schedule, *op));
            const auto time = cost_.is_issued_first(*op) ? cost_.start(rank) : host;
            const auto begun = cost_.start(rank) + cost_.begin_of_pass(rank);
            self.issued.push_back(op->transfers() ? time : std::max(time, begun));
            self.number.push_back(0);
            if (op->transfers() && op->kind != layouts::OpKind::fetch) {
                auto& list = messages_[channel_of(rank, *op, op->kind == layouts::OpKind::send)];
                self.number.back() = list.size();
                list.push_back(self.ops.size());
            }
            self.ops.push_back(*op);
        }
        self.times.resize(self.ops.size());
    }

    Picoseconds ready(int rank, std::size_t i) {
        const auto& mine = of(rank).ops;
        auto time = of(rank).issued[i];
        for (std::size_t j = i; j-- > 0;)
            if (mine[j].lane() == mine[i].lane()) {
                time = std::max(time, end(rank, j));
                break;
            }
        for (const auto j : mine[i].after()) time = std::max(time, end(rank, static_cast<std::size_t>(j)));
        return time;
    }

    Picoseconds end(int rank, std::size_t i) {
        auto& times = of(rank).times[i];
        if (times.end >= 0) return times.end;
        const auto& op = of(rank).ops[i];
        const auto index = static_cast<layouts::OpIndex>(i);
        times.posted = times.begin = ready(rank, i);
        if (!op.transfers()) return times.end = times.begin + cost_.compute(op, rank, index);
        const auto transfer = [&](int from, int to, int payer, layouts::OpIndex at) {
            return cost_.with_noise(cost_.transfer(from, to, op.bytes), payer, at).whole();
        };
        if (op.kind == layouts::OpKind::fetch) return times.end = times.begin + transfer(op.peer, rank, rank, index);
        const bool sends = op.kind == layouts::OpKind::send;
        const auto other = messages_.at(channel_of(rank, op, !sends)).at(of(rank).number[i]);
        times.begin = std::max(times.posted, ready(op.peer, other));
        return times.end =
                   times.begin + (sends ? transfer(rank, op.peer, rank, index)
                                        : transfer(op.peer, rank, op.peer, static_cast<layouts::OpIndex>(other)));
    }

    CostModel cost_;
    std::vector<Rank> ranks_;
    std::map<Channel, std::vector<std::size_t>> messages_;  // operations, in order
};

/// End of the last operation, if nothing is shared.
inline Picoseconds longest_chain(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    Picoseconds longest = 0;
    for (const auto& rank : Recursion(schedule, machine, options).play())
        for (const auto& times : rank) longest = std::max(longest, times.end);
    return longest;
}

/// Requires that simulate() predicts every operation as Recursion does. `options` say that nothing is shared.
inline void require_as_by_recursion(const Schedule& schedule, const Machine& machine, SimOptions options,
                                    const std::string& what) {
    options.trace = true;
    const auto spans = simulate(schedule, machine, options).timeline.spans;
    std::size_t at = 0;
    for (const auto& rank : Recursion(schedule, machine, options).play())
        for (const auto& times : rank) {
            BOOST_REQUIRE(at < spans.size());
            const auto& span = spans[at++];
            BOOST_REQUIRE_MESSAGE(span.posted == times.posted && span.begin == times.begin && span.end == times.end,
                                  what << " rank " << span.rank << " operation " << span.op << ": " << span.begin
                                       << ".." << span.end << " against " << times.begin << ".." << times.end);
        }
    BOOST_REQUIRE_EQUAL(at, spans.size());
}

}  // namespace ringlab::sim::test
