#include "sim/max_plus.hpp"

#include "layouts/require.hpp"
#include "sim/cost.hpp"

#include <algorithm>
#include <deque>

namespace ringlab::sim {
namespace {

using layouts::Lane;
using layouts::OpIndex;
using layouts::OpKind;
using layouts::Span;

constexpr Picoseconds unknown = -1;

struct Node {
    Op op;
    Picoseconds issued = 0;
    Picoseconds duration = 0;
    OpIndex before = -1;  // on the same lane
    Picoseconds ready = unknown;
    Picoseconds end = unknown;
};

class Recurrence {
public:
    Recurrence(const Schedule& schedule, const Machine& machine, const SimOptions& options)
        : schedule_(schedule), cost_(schedule, machine, options), nodes_(static_cast<std::size_t>(schedule.ranks())) {
        const auto starts = cost_.starts();
        for (int rank = 0; rank < schedule.ranks(); ++rank) read(rank, starts[index(rank)]);
    }

    layouts::Timeline run() {
        std::deque<int> ranks;
        for (int rank = 0; rank < schedule_.ranks(); ++rank) ranks.push_back(rank);
        for (; !ranks.empty(); ranks.pop_front()) visit(ranks.front(), ranks);
        return timeline();
    }

private:
    struct RankState {
        std::vector<Node> nodes;
        std::array<std::vector<OpIndex>, layouts::lane_count> lanes;
        std::array<std::size_t, layouts::lane_count> next{};  // by lane: first operation whose end is not known
    };

    static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

    void read(int rank, Picoseconds host) {
        auto& state = nodes_[index(rank)];
        auto ops = schedule_.ops(rank);
        while (const auto* op = ops.next()) {
            host = layouts::later(host, cost_.issue(*op));
            Node node{*op};
            node.issued = host;
            if (op->lane == Lane::compute) {
                node.duration = cost_.compute(rank, *op);
            } else {
                const auto cost = op->kind == OpKind::send ? cost_.transfer(rank, op->peer, op->bytes)
                                                           : cost_.transfer(op->peer, rank, op->bytes);
                node.duration = cost.whole();
            }
            auto& lane = state.lanes[static_cast<std::size_t>(op->lane)];
            if (!lane.empty()) node.before = lane.back();
            lane.push_back(static_cast<OpIndex>(state.nodes.size()));
            state.nodes.push_back(node);
        }
    }

    /// Settles all of a rank's operations that can be, and queues the ranks that this helps.
    void visit(int rank, std::deque<int>& ranks) {
        auto& state = nodes_[index(rank)];
        for (bool progress = true; progress;) {
            progress = false;
            for (std::size_t lane = 0; lane < layouts::lane_count; ++lane)
                while (state.next[lane] < state.lanes[lane].size() &&
                       settle(rank, state.nodes[index(state.lanes[lane][state.next[lane]])], ranks)) {
                    ++state.next[lane];
                    progress = true;
                }
        }
    }

    /// Whether the node's end is known now.
    bool settle(int rank, Node& node, std::deque<int>& ranks) {
        if (node.end != unknown) return true;
        auto& state = nodes_[index(rank)];
        if (node.ready == unknown) {
            Picoseconds ready = node.issued;
            const auto wait_for = [&](OpIndex other) {
                const auto end = state.nodes[index(other)].end;
                if (end == unknown) return false;
                ready = std::max(ready, end);
                return true;
            };
            if (node.before >= 0 && !wait_for(node.before)) return false;
            for (const auto other : node.op.after())
                if (!wait_for(other)) return false;
            node.ready = ready;
        }
        if (node.op.kind != OpKind::send && node.op.kind != OpKind::receive) {
            node.end = layouts::later(node.ready, node.duration);
            return true;
        }
        auto* other = partner(rank, node.op);
        if (!other || other->ready == unknown) return false;
        node.end = other->end = layouts::later(std::max(node.ready, other->ready), node.duration);
        ranks.push_back(node.op.peer);
        return true;
    }

    /// The peer's next send or receive of the same payload, if it is meant for `rank`.
    Node* partner(int rank, const Op& op) {
        const bool sends = op.kind == OpKind::send;
        const auto lane = op.payload == layouts::Payload::kv ? (sends ? Lane::receive_kv : Lane::send_kv)
                                                             : (sends ? Lane::receive_dkv : Lane::send_dkv);
        auto& state = nodes_[index(op.peer)];
        const auto& ops = state.lanes[static_cast<std::size_t>(lane)];
        const auto next = state.next[static_cast<std::size_t>(lane)];
        if (next >= ops.size()) return nullptr;
        auto& node = state.nodes[index(ops[next])];
        return node.op.peer == rank && node.end == unknown ? &node : nullptr;
    }

    layouts::Timeline timeline() const {
        layouts::Timeline timeline{schedule_.ranks(), {}};
        for (int rank = 0; rank < schedule_.ranks(); ++rank) {
            OpIndex op = 0;
            for (const auto& node : nodes_[index(rank)].nodes) {
                require(node.end != unknown, "the schedule cannot be finished: operation {} of rank {} waits for ever",
                        op, rank);
                timeline.spans.push_back({rank, op++, node.op.step, node.op.kind, node.op.lane, node.op.peer,
                                          node.op.owner, node.end - node.duration, node.end, node.duration,
                                          node.op.cells, node.op.bytes});
            }
        }
        return timeline;
    }

    const Schedule& schedule_;
    CostModel cost_;
    std::vector<RankState> nodes_;
};

}  // namespace

layouts::Timeline max_plus(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    require(!options.sharing, "the max-plus recurrence holds only with sharing off");
    return Recurrence(schedule, machine, options).run();
}

}  // namespace ringlab::sim
