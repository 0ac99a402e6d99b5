#include "layouts/program/walk.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/clocks.hpp"
#include "sim/play/simulate.hpp"
#include "sim/tiles/fused_launch.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace ringlab::sim {
namespace {

using layouts::compute_lane;
using layouts::Lane;
using layouts::OpIndex;
using layouts::OpKind;

/// All operations of one rank, which stands for all its peers. Every operation begins at the maximum of the ends that
/// it waits for, and ends after its duration (a max-plus recurrence).
class RecurrenceOfRank {
public:
    /// All ranks run at the same clock.
    RecurrenceOfRank(const Schedule& schedule, const Machine& machine, const SimOptions& options, int rank,
                     double clock, std::shared_ptr<TileModel> tiles)
        : cost_(schedule, machine, options, std::vector<double>(static_cast<std::size_t>(schedule.ranks()), clock),
                std::move(tiles)),
          rank_(rank),
          lanes_(static_cast<std::size_t>(schedule.lanes())) {
        if (cost_.waits_inside_kernel()) launches_.emplace(cost_.key_launches(rank));
        const auto begin = layouts::checked_sum(cost_.start(rank), cost_.begin_of_pass(rank));
        auto host = cost_.start(rank);
        PartlyFilledSlots slots;
        OpIndex index = 0;
        for (auto ops = schedule.ops(rank); const auto* op = ops.next(); ++index) {
            const auto issued = cost_.issue_next(*op, rank, slots, host).end;
            keep(*op, op->transfers() ? issued : std::max(issued, begin));
            if (op->kind != OpKind::attend) continue;
            found_.flop += schedule.flop(*op);
            computed_flop_ += cost_.computed_flop(*op);
        }
    }

    OneRank run() {
        while (advance() || force()) {
        }
        Picoseconds end = 0;
        for (const auto& node : nodes_) end = std::max(end, node.end);
        // Messages of one direction share the link, also if they are on different lanes. So the pass takes at least
        // their sum.
        for (const auto busy : link_time_) end = std::max(end, busy);
        found_.seconds = layouts::to_seconds(layouts::checked_sum(end, cost_.end_of_pass(rank_)));
        found_.operations = static_cast<std::int64_t>(nodes_.size());
        return found_;
    }

    /// FLOP of the tiles that the rank computes.
    double computed_flop() const { return computed_flop_; }

private:
    static constexpr Picoseconds unknown = -1;

    /// What is kept of an operation, about 80 bytes.
    struct Node {
        OpKind kind = OpKind::attend;
        bool moves_gradient = false;
        std::array<OpIndex, 5> waits_for{};  // the operation before it on its lane, and Op::after()
        int waits = 0;
        Picoseconds issued = 0, duration = 0;
        Picoseconds ready = unknown, end = unknown;

        bool transfers() const { return kind == OpKind::send || kind == OpKind::receive || kind == OpKind::fetch; }
    };

    /// The operations of a lane, and how many of them have ended.
    struct LaneOps {
        std::vector<OpIndex> ops;
        std::size_t ended = 0;

        bool is_done() const { return ended == ops.size(); }
        OpIndex head() const { return ops[ended]; }
    };

    Node& node(OpIndex op) { return nodes_[static_cast<std::size_t>(op)]; }
    LaneOps& lane(Lane number) { return lanes_[static_cast<std::size_t>(number)]; }

    void keep(const Op& op, Picoseconds issued) {
        auto& ops = lane(op.lane()).ops;
        auto& self = nodes_.emplace_back();
        self.kind = op.kind;
        self.moves_gradient = op.pool == layouts::Pool::dkv;
        self.issued = issued;
        self.duration = op.transfers() ? transfer(op) : cost_.compute(op, rank_);
        if (!op.transfers()) found_.compute += layouts::to_seconds(self.duration);
        for (const auto other : op.after()) self.waits_for[static_cast<std::size_t>(self.waits++)] = other;
        if (!ops.empty()) self.waits_for[static_cast<std::size_t>(self.waits++)] = ops.back();
        ops.push_back(static_cast<OpIndex>(nodes_.size() - 1));
    }

    Picoseconds transfer(const Op& op) {
        const bool sends = op.kind == OpKind::send;
        const auto duration =
            (sends ? cost_.transfer(rank_, op.peer, op.bytes) : cost_.transfer(op.peer, rank_, op.bytes)).whole();
        auto& busy = link_time_[sends ? 0 : 1];
        busy = layouts::checked_sum(busy, duration);
        return duration;
    }

    /// Whether the first operation of a lane that has not ended has everything that it waits for. Finds when it had.
    bool is_ready(Lane number) {
        auto& self = node(lane(number).head());
        if (self.ready != unknown) return true;
        auto ready = self.issued;
        for (int i = 0; i < self.waits; ++i) {
            const auto end = node(self.waits_for[static_cast<std::size_t>(i)]).end;
            if (end == unknown) return false;
            ready = std::max(ready, end);
        }
        self.ready = ready;
        return true;
    }

    void end(Lane number) {
        auto& self = node(lane(number).head());
        const bool waits_inside = launches_ && self.kind == OpKind::attend;
        self.end = waits_inside ? end_inside_kernel(self) : layouts::checked_sum(self.ready, self.duration);
        ++lane(number).ended;
    }

    /// End of an attend of a launch that waits inside the kernel.
    Picoseconds end_inside_kernel(const Node& self) {
        Picoseconds block = 0, gradient = 0;
        for (int i = 0; i < self.waits; ++i) {
            const auto& before = node(self.waits_for[static_cast<std::size_t>(i)]);
            if (!before.transfers()) continue;
            auto& arrival = before.moves_gradient ? gradient : block;
            arrival = std::max(arrival, before.end);
        }
        const auto end = launches_->end_of_next_attend(self.ready, block, gradient, 1);
        launches_->ended(end);
        return end;
    }

    /// Runs each lane as far as possible, one lane after another. Returns whether anything has ended. The order of
    /// lanes matters only if force() was needed.
    bool advance() {
        bool any = false;
        for (Lane number = 0; number < std::ssize(lanes_); ++number)
            while (!lane(number).is_done() && is_ready(number) && run_head(number)) any = true;
        return any;
    }

    bool run_head(Lane number) {
        const auto& self = node(lane(number).head());
        if (self.transfers() && self.kind != OpKind::fetch && !meets(number)) return false;
        end(number);
        return true;
    }

    /// Whether a half of a message can begin, and from when on. In place of the peer's half it waits for this rank's
    /// own opposite half with the same number on the channel. If there is none, it starts alone.
    bool meets(Lane number) {
        auto& self = node(lane(number).head());
        const auto opposite = layouts::counterpart(number);
        auto& others = lane(opposite);
        if (lane(number).ended >= others.ops.size()) return true;
        const auto first = others.ops[lane(number).ended];
        auto& other = node(first);
        if (other.ready == unknown && (others.head() != first || !is_ready(opposite))) return false;
        self.ready = other.ready = std::max(self.ready, other.ready);
        if (other.end == unknown)
            end(opposite);
        else  // force() has started it too early
            other.end = layouts::checked_sum(other.ready, other.duration);
        return true;
    }

    /// Resolves a cycle of halves that wait for each other, first can happen if ranks differ: the first one that waits
    /// starts alone.
    bool force() {
        for (Lane number = 0; number < std::ssize(lanes_); ++number) {
            if (lane(number).is_done() || node(lane(number).head()).ready == unknown) continue;
            end(number);
            return true;
        }
        return false;
    }

    CostModel cost_;
    int rank_;
    std::vector<LaneOps> lanes_;
    std::vector<Node> nodes_;                 // by operation
    std::optional<KeyLaunches> launches_;     // if fused launches wait inside the kernel
    std::array<Picoseconds, 2> link_time_{};  // out, in
    OneRank found_;
    double computed_flop_ = 0;
};

}  // namespace

OneRank play_one_rank(const Schedule& schedule, const Machine& machine, const SimOptions& options, int rank) {
    const auto tiles = make_tiles(schedule, machine, options);
    OneRank found;
    double found_at = 0;
    const auto play = [&](double clock) {
        RecurrenceOfRank recurrence(schedule, machine, options, rank, clock, tiles);
        found = recurrence.run();
        found_at = clock;
        PlayedPass pass{{}, {recurrence.computed_flop()}};
        pass.prediction.makespan = layouts::to_picoseconds(found.seconds);
        pass.prediction.ranks.emplace_back().compute = layouts::to_picoseconds(found.compute);
        return pass;
    };
    double clock = 1;
    if (power_limits_clocks(schedule, machine, options)) {
        const Topology topology(schedule.ranks() * options.replicas, machine, options);
        const auto powers = sustained_flops_by_rank(schedule, machine, topology, rank + 1);
        clock = find_sustained_clocks({&powers.back(), 1}, options, [&](const auto& clocks) {
                    return play(clocks.front());
                }).front();
    }
    if (clock != found_at) play(clock);
    return found;
}

}  // namespace ringlab::sim
