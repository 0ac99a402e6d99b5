#include "sim/recurrence/max_plus.hpp"

#include "sim/play/clocks.hpp"
#include "sim/play/trace.hpp"
#include "sim/recurrence/recurrence.hpp"
#include "sim/speed/op_source.hpp"

namespace ringlab::sim {
namespace {

/// The recurrence of all ranks of a ring.
class RecurrenceOfRing : public Recurrence<RecurrenceOfRing> {
public:
    RecurrenceOfRing(const Schedule& schedule, const Machine& machine, const SimOptions& options)
        : Recurrence(schedule, machine, options, {}, nullptr),
          ops_(schedule, schedule.ranks()),
          trace_(static_cast<std::size_t>(schedule.ranks()), static_cast<int>(schedule.problem().query_heads)) {
        for (int rank = 0; rank < schedule.ranks(); ++rank) ranks_.push_back(begin_rank(rank));
    }

    layouts::Timeline run() {
        const auto ranks = schedule_.ranks();
        for (int rank = 0; rank < ranks; ++rank) advance(rank);
        end_all(ended_);
        require_finished(ranks);
        Prediction prediction;
        prediction.timeline = {ranks, {}};
        trace_.give(prediction);
        return std::move(prediction.timeline);
    }

private:
    friend class layouts::Walk<RecurrenceOfRing>;
    friend class IssuedWalk<RecurrenceOfRing>;
    friend class Recurrence<RecurrenceOfRing>;

    Rank& rank_of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    static int stand_in(int rank) { return rank; }
    const Op* next_op(int rank, std::uint32_t index) { return ops_.next(rank, index); }

    std::int64_t take(int rank, const Op& op, layouts::OpIndex index, layouts::Interval issue) {
        take_node(rank, op, op.transfers() ? 0 : cost_.compute(op, rank, index));
        trace_.read(rank, 0, op, issue);
        return op.bytes;
    }

    void start(int rank, Lane lane) {
        const auto& op = head_of(rank, lane);
        const auto index = static_cast<layouts::OpIndex>(rank_of(rank).window.head(lane));
        const auto transfer = [&](int from, int to) {
            return cost_.with_noise(cost_.transfer(from, to, op.work), rank, index).whole();
        };
        const auto ready = head_node(rank, lane).ready;
        if (lane == compute_lane) {
            run_compute(rank, cost_.slowdown(rank, index));
        } else if (op.kind() == OpKind::fetch) {
            run_head(rank, lane, ready, transfer(op.peer, rank));
        } else {
            require_match(rank, lane);
            const auto other = layouts::counterpart(lane);
            const auto begin = std::max(ready, head_node(op.peer, other).ready), duration = transfer(rank, op.peer);
            run_head(op.peer, other, begin, duration);
            run_head(rank, lane, begin, duration);
        }
        ended_.push(rank, lane);
    }

    void finish(int rank, Lane lane) {
        const auto& self = head_node(rank, lane);
        const std::size_t op = rank_of(rank).window.head(lane);
        trace_.post(rank, op, self.ready);
        trace_.end(rank, op, self.end - self.duration, self.end);
        Recurrence::finish(rank, lane);
    }

    OpSource ops_;
    std::vector<Rank> ranks_;
    Trace trace_;
};

}  // namespace

layouts::Timeline max_plus(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    require(!options.sharing, "the max-plus recurrence holds only with sharing off");
    require(!power_limits_clocks(schedule, machine, options), "the max-plus recurrence needs Clock::calibrated");
    require(options.replicas == 1, "{} rings side by side; the max-plus recurrence plays one", options.replicas);
    return RecurrenceOfRing(schedule, machine, options).run();
}

}  // namespace ringlab::sim
