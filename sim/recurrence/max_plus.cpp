#include "sim/recurrence/max_plus.hpp"

#include "layouts/basics/require.hpp"
#include "layouts/program/program.hpp"
#include "sim/cost/cost.hpp"
#include "sim/cost/key_launch.hpp"
#include "sim/play/clocks.hpp"

#include <algorithm>
#include <deque>

namespace ringlab::sim {
namespace {

using layouts::Instruction;
using layouts::OpIndex;
using layouts::OpKind;

constexpr Picoseconds unknown = -1;

struct Node {
    Picoseconds issued = 0;
    Picoseconds duration = 0;
    OpIndex before = -1;  // on the same lane
    Picoseconds ready = unknown;
    Picoseconds end = unknown;
};

class Recurrence {
public:
    Recurrence(const Schedule& schedule, const Machine& machine, const SimOptions& options)
        : cost_(schedule, machine, options), program_(layouts::resolve(schedule)), ranks_(program_.ranks.size()) {
        const auto starts = cost_.starts();
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) read(rank, starts[rank]);
        if (!cost_.waits_inside_kernel()) return;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
            key_launches_.push_back(cost_.key_launches(static_cast<int>(rank)));
    }

    /// Every operation gets an end, because resolve() accepts only schedules that can finish.
    layouts::Timeline run() {
        std::deque<std::size_t> ranks;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ranks.push_back(rank);
        for (; !ranks.empty(); ranks.pop_front()) visit(ranks.front(), ranks);
        return timeline();
    }

private:
    struct LaneQueue {
        std::vector<OpIndex> ops;
        std::size_t next = 0;  // first operation whose end is not known
    };
    struct RankState {
        std::vector<Node> nodes;
        std::vector<LaneQueue> lanes;
    };

    static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
    const Instruction& instruction(std::size_t rank, std::size_t which) const {
        return program_.ranks[rank].code[which];
    }

    void read(std::size_t rank, Picoseconds host) {
        auto& state = ranks_[rank];
        const auto begin_ended = layouts::checked_sum(host, cost_.begin_of_pass(static_cast<int>(rank)));
        state.lanes.resize(index(program_.lanes));
        auto clock = cost_.host_clock(host);
        for (const auto& made : program_.ranks[rank].code) {
            const auto& op = made.op;
            const auto issued =
                clock.issue(op, static_cast<OpIndex>(state.nodes.size()), cost_.issue(op, clock.follows(op)),
                            [&](OpIndex transfer, Picoseconds delay) { state.nodes[index(transfer)].issued += delay; });
            auto& lane = state.lanes[index(op.lane())].ops;
            auto& node = state.nodes.emplace_back();
            node.issued = op.transfers() ? issued : std::max(issued, begin_ended);
            node.duration = duration(static_cast<int>(rank), op, static_cast<OpIndex>(state.nodes.size() - 1));
            if (!lane.empty()) node.before = lane.back();
            lane.push_back(static_cast<OpIndex>(state.nodes.size() - 1));
        }
    }

    /// A receive takes the duration of its send.
    Picoseconds duration(int rank, const Op& op, OpIndex index) {
        if (!op.transfers()) return cost_.compute(op, rank, index);
        if (op.kind == OpKind::receive) return 0;
        const auto cost =
            op.kind == OpKind::send ? cost_.transfer(rank, op.peer, op.bytes) : cost_.transfer(op.peer, rank, op.bytes);
        return cost_.with_noise(cost, rank, index).whole();
    }

    /// Computes the ends of all operations of a rank that are possible now, and queues the ranks that this helps.
    void visit(std::size_t rank, std::deque<std::size_t>& ranks) {
        for (bool progress = true; progress;) {
            progress = false;
            for (auto& lane : ranks_[rank].lanes)
                while (lane.next < lane.ops.size() && settle(rank, index(lane.ops[lane.next]), ranks)) {
                    ++lane.next;
                    progress = true;
                }
        }
    }

    /// Returns whether the operation's end is known now.
    bool settle(std::size_t rank, std::size_t which, std::deque<std::size_t>& ranks) {
        auto& node = ranks_[rank].nodes[which];
        if (node.end != unknown) return true;
        const auto& op = instruction(rank, which).op;
        const auto partner = instruction(rank, which).partner;
        if (node.ready == unknown) node.ready = ready(rank, node, op);
        if (node.ready == unknown) return false;
        if (partner < 0) {
            if (op.kind == OpKind::attend && !key_launches_.empty()) node.duration = time_inside(rank, which);
            node.end = layouts::checked_sum(node.ready, node.duration);
            return true;
        }
        auto& other = ranks_[index(op.peer)].nodes[index(partner)];
        if (other.ready == unknown) return false;
        node.duration = other.duration = std::max(node.duration, other.duration);
        node.end = other.end = layouts::checked_sum(std::max(node.ready, other.ready), node.duration);
        ranks.push_back(index(op.peer));
        return true;
    }

    /// When an operation's own side is ready, or `unknown`.
    Picoseconds ready(std::size_t rank, const Node& node, const Op& op) const {
        Picoseconds time = node.issued;
        const auto wait_for = [&](OpIndex other) {
            const auto end = ranks_[rank].nodes[index(other)].end;
            time = end == unknown || time == unknown ? unknown : std::max(time, end);
        };
        if (node.before >= 0) wait_for(node.before);
        for (const auto other : op.after()) wait_for(other);
        return time;
    }

    /// Duration of an attend of a launch that waits inside the kernel, when all arrival times are known.
    Picoseconds time_inside(std::size_t rank, std::size_t which) {
        Picoseconds block = 0, gradient = 0;
        for (const auto other : instruction(rank, which).op.after()) {
            const auto& before = instruction(rank, index(other)).op;
            if (!before.transfers()) continue;
            auto& time = before.pool == layouts::Pool::dkv ? gradient : block;
            time = std::max(time, ranks_[rank].nodes[index(other)].end);
        }
        const auto ready = ranks_[rank].nodes[which].ready;
        const auto slower = cost_.slower(static_cast<int>(rank), static_cast<OpIndex>(which));
        const auto end = key_launches_[rank].end_of_next_attend(ready, block, gradient, slower);
        key_launches_[rank].ended(end);
        return end - ready;
    }

    layouts::Timeline timeline() const {
        layouts::Timeline timeline{static_cast<int>(ranks_.size()), {}};
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
            for (std::size_t which = 0; which < ranks_[rank].nodes.size(); ++which) {
                const auto& node = ranks_[rank].nodes[which];
                auto& span = timeline.spans.emplace_back(
                    layouts::span_of(static_cast<int>(rank), static_cast<OpIndex>(which), instruction(rank, which).op,
                                     program_.ranks[rank].query_heads));
                span.posted = node.ready;
                span.begin = node.end - node.duration;
                span.end = node.end;
                span.busy = node.duration;
            }
        return timeline;
    }

    CostModel cost_;
    layouts::Program program_;
    std::vector<RankState> ranks_;
    std::vector<KeyLaunches> key_launches_;  // by rank, if fused launches wait inside the kernel
};

}  // namespace

layouts::Timeline max_plus(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    require(!options.sharing, "the max-plus recurrence holds only with sharing off");
    require(!power_limits_clocks(schedule, machine, options), "the max-plus recurrence needs Clock::calibrated");
    require(options.replicas == 1, "{} rings side by side; the max-plus recurrence plays one", options.replicas);
    return Recurrence(schedule, machine, options).run();
}

}  // namespace ringlab::sim
