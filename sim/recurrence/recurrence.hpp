#pragma once

#include "sim/cost/key_launch.hpp"
#include "sim/ranks/issued_walk.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace ringlab::sim {

/// A walk without an event queue, for the case that nothing is shared: every operation begins at the maximum of the
/// ends that it waits for, and ends after its duration (a max-plus recurrence). So it does not matter in which order
/// operations end. `Player` is one kind of recurrence, see Walk and IssuedWalk; it has ranks of type Rank, calls
/// take_node() for each operation that it takes, and says how long messages take.
template <class Player>
class Recurrence : public IssuedWalk<Player> {
protected:
    friend class layouts::Walk<Player>;
    friend class IssuedWalk<Player>;

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

    struct Rank : SimulatedRank {
        std::vector<Node> nodes;                  // by operation, as far as it was read
        std::vector<std::vector<OpIndex>> lanes;  // by lane: its operations, as far as they were read
        std::vector<KeyLaunches> launches;        // one, if fused launches wait inside the kernel
    };

    using IssuedWalk<Player>::IssuedWalk;

    Rank begin_rank(int id) {
        Rank rank{IssuedWalk<Player>::begin_rank(id), {}, {}, {}};
        rank.lanes.resize(static_cast<std::size_t>(this->lanes_));
        if (this->cost_.waits_inside_kernel()) rank.launches.push_back(this->cost_.key_launches(id));
        return rank;
    }

    Node& node(int id, std::int64_t op) { return player().rank_of(id).nodes[static_cast<std::size_t>(op)]; }
    Node& head_node(int id, Lane lane) { return node(id, player().rank_of(id).window.head(lane)); }

    void take_node(int id, const Op& op, Picoseconds duration) {
        auto& rank = player().rank_of(id);
        auto& lane = rank.lanes[static_cast<std::size_t>(op.lane())];
        auto& self = rank.nodes.emplace_back();
        self.kind = op.kind;
        self.moves_gradient = op.pool == Pool::dkv;
        self.duration = duration;
        for (const auto other : op.after()) self.waits_for[static_cast<std::size_t>(self.waits++)] = other;
        if (!lane.empty()) self.waits_for[static_cast<std::size_t>(self.waits++)] = lane.back();
        lane.push_back(static_cast<OpIndex>(rank.nodes.size() - 1));
    }

    bool post(int id, Lane lane, std::uint32_t head) {
        auto& window = player().rank_of(id).window;
        auto& self = node(id, head);
        self.ready = window[head].time;
        for (int i = 0; i < self.waits; ++i)
            self.ready = std::max(self.ready, node(id, self.waits_for[static_cast<std::size_t>(i)]).end);
        window.set_head_state(lane, OpState::posted);
        return true;
    }

    void finish(int id, Lane lane) { player().rank_of(id).window.finish_head(lane); }

    /// The head of a lane runs from `begin` on.
    void run_head(int id, Lane lane, Picoseconds begin, Picoseconds duration) {
        this->head_of(id, lane).state = OpState::running;
        auto& self = head_node(id, lane);
        self.duration = duration;
        self.end = layouts::checked_sum(begin, duration);
    }

    /// `slower`: see CostModel::slowdown().
    void run_compute(int id, double slower) {
        const auto& self = head_node(id, compute_lane);
        auto& launches = player().rank_of(id).launches;
        const bool inside = self.kind == OpKind::attend && !launches.empty();
        run_head(id, compute_lane, self.ready,
                 inside ? end_inside_kernel(id, launches.front(), self, slower) - self.ready : self.duration);
    }

    layouts::EndedStack ended_;

private:
    Player& player() { return static_cast<Player&>(*this); }

    /// End of an attend of a launch that waits inside the kernel.
    Picoseconds end_inside_kernel(int id, KeyLaunches& launches, const Node& self, double slower) {
        Picoseconds block = 0, gradient = 0;
        for (int i = 0; i < self.waits; ++i) {
            const auto& before = node(id, self.waits_for[static_cast<std::size_t>(i)]);
            if (!before.transfers()) continue;
            auto& arrival = before.moves_gradient ? gradient : block;
            arrival = std::max(arrival, before.end);
        }
        const auto end = launches.end_of_next_attend(self.ready, block, gradient, slower);
        launches.ended(end);
        return end;
    }
};

}  // namespace ringlab::sim
