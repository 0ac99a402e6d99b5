#include "sim/play/simulate.hpp"

#include "sim/play/clocks.hpp"
#include "sim/play/issued_walk.hpp"
#include "sim/tiles/fused_launch.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace ringlab::sim {
namespace {

/// A walk of one rank, which stands for all its peers. It needs no event queue, because nothing is shared: every
/// operation begins at the maximum of the ends that it waits for, and ends after its duration (a max-plus recurrence).
/// So it does not matter in which order operations end.
class RecurrenceOfRank : public IssuedWalk<RecurrenceOfRank> {
public:
    /// All ranks run at the same clock.
    RecurrenceOfRank(const Schedule& schedule, const Machine& machine, const SimOptions& options, int rank,
                     double clock, std::shared_ptr<TileModel> tiles)
        : IssuedWalk(schedule, machine, options, std::vector<double>(static_cast<std::size_t>(schedule.ranks()), clock),
                     std::move(tiles)),
          id_(rank),
          ops_(schedule.ops(rank)),
          rank_(begin_rank(rank)),
          ops_of_lane_(static_cast<std::size_t>(lanes_)),
          ended_by_lane_(static_cast<std::size_t>(lanes_)) {
        if (cost_.waits_inside_kernel()) launches_.emplace(cost_.key_launches(rank));
    }

    OneRank run() {
        refill(id_);
        while (advance_lanes() || force()) {
        }
        Picoseconds end = 0;
        for (const auto& node : nodes_) end = std::max(end, node.end);
        // Messages of one direction share the link, also if they are on different lanes. So the pass takes at least
        // their sum.
        for (const auto busy : link_time_) end = std::max(end, busy);
        found_.seconds = layouts::to_seconds(layouts::checked_sum(end, cost_.end_of_pass(id_)));
        found_.operations = static_cast<std::int64_t>(nodes_.size());
        return found_;
    }

    /// FLOP of the tiles that the rank computes.
    double computed_flop() const { return computed_flop_; }

private:
    friend class layouts::Walk<RecurrenceOfRank>;
    friend class IssuedWalk<RecurrenceOfRank>;

    static constexpr Picoseconds unknown = -1;

    /// What is kept of an operation, about 70 bytes.
    struct Node {
        OpKind kind = OpKind::attend;
        bool moves_gradient = false;
        std::array<OpIndex, 5> waits_for{};  // the operation before it on its lane, and Op::after()
        int waits = 0;
        Picoseconds duration = 0;
        Picoseconds ready = unknown, end = unknown;

        bool transfers() const { return kind == OpKind::send || kind == OpKind::receive || kind == OpKind::fetch; }
    };

    SimulatedRank& rank_of(int) { return rank_; }
    int stand_in(int) const { return id_; }
    const Op* next_op(int, std::uint32_t) { return ops_.next(); }

    Node& node(std::int64_t op) { return nodes_[static_cast<std::size_t>(op)]; }
    Node& head_node(Lane lane) { return node(rank_.window.head(lane)); }

    /// Reads all operations at once, to know how many messages each lane has.
    bool must_read(int) const { return rank_.more; }

    std::int64_t take(int rank, const Op& op, layouts::OpIndex, layouts::Interval) {
        const auto duration = op.transfers() ? transfer(rank, op) : cost_.compute(op, rank);
        keep(op, duration);
        if (!op.transfers()) found_.compute += layouts::to_seconds(duration);
        if (op.kind == OpKind::attend) {
            found_.flop += schedule_.flop(op);
            computed_flop_ += cost_.computed_flop(op);
        }
        return op.bytes;
    }

    void keep(const Op& op, Picoseconds duration) {
        auto& lane = ops_of_lane_[static_cast<std::size_t>(op.lane())];
        auto& self = nodes_.emplace_back();
        self.kind = op.kind;
        self.moves_gradient = op.pool == Pool::dkv;
        self.duration = duration;
        for (const auto other : op.after()) self.waits_for[static_cast<std::size_t>(self.waits++)] = other;
        if (!lane.empty()) self.waits_for[static_cast<std::size_t>(self.waits++)] = lane.back();
        lane.push_back(static_cast<OpIndex>(nodes_.size() - 1));
    }

    Picoseconds transfer(int rank, const Op& op) {
        const bool sends = op.kind == OpKind::send;
        const auto duration =
            (sends ? cost_.transfer(rank, op.peer, op.bytes) : cost_.transfer(op.peer, rank, op.bytes)).whole();
        auto& busy = link_time_[sends ? 0 : 1];
        busy = layouts::checked_sum(busy, duration);
        return duration;
    }

    bool post(int, Lane lane, std::uint32_t head) {
        auto& self = node(head);
        self.ready = rank_.window[head].time;
        for (int i = 0; i < self.waits; ++i)
            self.ready = std::max(self.ready, node(self.waits_for[static_cast<std::size_t>(i)]).end);
        rank_.window.set_head_state(lane, OpState::posted);
        return true;
    }

    void start(int, Lane lane) {
        head_of(id_, lane).state = OpState::running;
        auto& self = head_node(lane);
        const bool waits_inside = launches_ && self.kind == OpKind::attend;
        self.end = waits_inside ? end_inside_kernel(self) : layouts::checked_sum(self.ready, self.duration);
        ended_.push(id_, lane);
    }

    void finish(int, Lane lane) { rank_.window.finish_head(lane); }

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
    bool advance_lanes() {
        bool any = false;
        for (Lane lane = 0; lane < lanes_; ++lane)
            for (auto head = rank_.window.head(lane); head != OpWindow::none; head = rank_.window.head(lane)) {
                const auto& op = rank_.window[head];
                op.state == OpState::posted ? meet(id_, lane, op) : try_start(id_, lane);
                if (ended_.empty()) break;
                finish_ended();
                any = true;
            }
        return any;
    }

    /// Starts a half of a message. In place of the peer's half it waits for this rank's own opposite half with the same
    /// number on the channel. If there is none, it starts alone.
    void meet(int rank, Lane lane, const PendingOp&) {
        const auto other_lane = layouts::counterpart(lane);
        const auto number = ended_by_lane_[static_cast<std::size_t>(lane)];
        const auto& others = ops_of_lane_[static_cast<std::size_t>(other_lane)];
        if (number >= others.size()) return start(rank, lane);
        auto &self = head_node(lane), &other = node(others[number]);
        if (other.ready == unknown) {
            const auto head = rank_.window.head(other_lane);
            if (head != static_cast<std::uint32_t>(others[number]) || !rank_.window.may_run(head)) return;
            post(rank, other_lane, head);
        }
        self.ready = other.ready = std::max(self.ready, other.ready);
        if (other.end == unknown)
            start(rank, other_lane);
        else  // force() has started it too early
            other.end = layouts::checked_sum(other.ready, other.duration);
        start(rank, lane);
    }

    void finish_ended() {
        while (!ended_.empty()) {
            const auto [rank, lane] = ended_.pop();
            finish(rank, lane);
            ++ended_by_lane_[static_cast<std::size_t>(lane)];
        }
    }

    /// Resolves a cycle of halves that wait for each other, which can happen if ranks differ: the first one that waits
    /// starts alone.
    bool force() {
        for (Lane lane = 0; lane < lanes_; ++lane) {
            const auto head = rank_.window.head(lane);
            if (head == OpWindow::none || rank_.window[head].state != OpState::posted) continue;
            start(id_, lane);
            finish_ended();
            return true;
        }
        return false;
    }

    int id_;
    layouts::Ops ops_;
    SimulatedRank rank_;
    std::vector<Node> nodes_;                        // by operation
    std::vector<std::vector<OpIndex>> ops_of_lane_;  // by lane: its operations
    std::optional<KeyLaunches> launches_;            // if fused launches wait inside the kernel
    layouts::EndedStack ended_;
    std::vector<std::size_t> ended_by_lane_;  // number of operations that have ended
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
