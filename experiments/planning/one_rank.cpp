#include "experiments/planning/one_rank.hpp"

#include "sim/cost/cost.hpp"
#include "sim/cost/key_launch.hpp"
#include "sim/play/clocks.hpp"
#include "sim/ranks/lanes.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace ringlab::experiments {
namespace {

using layouts::OpIndex;
using layouts::OpKind;
using layouts::Picoseconds;

struct Node {
    OpKind kind = OpKind::attend;
    layouts::Lane lane = 0;
    OpIndex before = -1;  // on the same lane
    std::array<OpIndex, 4> after{};
    int after_count = 0;
    bool moves_gradient = false;
    Picoseconds issued = 0, duration = 0;
    Picoseconds ready = -1, end = -1;  // -1: not known
};

class OneRankPlayer {
public:
    /// With all ranks at one clock.
    OneRankPlayer(const layouts::Schedule& schedule, const sim::Machine& machine, const sim::SimOptions& options,
                  int rank, double clock, std::shared_ptr<sim::TileModel> tiles)
        : cost_(schedule, machine, options, std::vector<double>(static_cast<std::size_t>(schedule.ranks()), clock),
                std::move(tiles)),
          lanes_(static_cast<std::size_t>(schedule.lanes())) {
        read(schedule, rank);
        if (cost_.waits_inside_kernel()) inside_.emplace(cost_.key_launches(rank));
        behind_ = cost_.end_of_pass(rank);
    }

    OneRank play() {
        while (advance() || force()) {
        }
        Picoseconds end = 0;
        for (const auto& node : nodes_) end = std::max(end, node.end);
        // What a direction of the link carries goes over it one after another, whatever the lanes say.
        for (const auto bytes_time : link_time_) end = std::max(end, bytes_time);
        found_.seconds = layouts::to_seconds(layouts::checked_sum(end, behind_));
        return found_;
    }

    /// FLOP that take power.
    double computed_flop() const { return powered_flop_; }

    /// FLOP/s that the GPU of the rank could do without end at the clock of short runs.
    double power(const layouts::Schedule& schedule, const sim::Machine& machine, int rank) const {
        return sim::sustained_flops_by_rank(schedule, machine, cost_.topology(), rank + 1).back();
    }

private:
    struct LaneQueue {
        std::vector<OpIndex> ops;
        std::size_t next = 0;
    };

    Node& node(OpIndex index) { return nodes_[static_cast<std::size_t>(index)]; }
    LaneQueue& lane(layouts::Lane which) { return lanes_[static_cast<std::size_t>(which)]; }

    void read(const layouts::Schedule& schedule, int rank) {
        auto ops = schedule.ops(rank);
        auto host = cost_.host_clock(0);
        while (const auto* op = ops.next()) {
            const auto issued =
                host.issue(*op, static_cast<OpIndex>(nodes_.size()), cost_.issue(*op, host.follows(*op)),
                           [&](OpIndex transfer, Picoseconds delay) { node(transfer).issued += delay; });
            Node added;
            added.kind = op->kind;
            added.lane = op->lane();
            added.moves_gradient = op->transfers() && op->pool == layouts::Pool::dkv;
            added.issued = op->transfers() ? issued : std::max(issued, cost_.begin_of_pass(rank));
            added.after = op->after_storage;
            added.after_count = op->after_count;
            if (op->transfers()) {
                const bool sends = op->kind == OpKind::send;
                added.duration =
                    (sends ? cost_.transfer(rank, op->peer, op->bytes) : cost_.transfer(op->peer, rank, op->bytes))
                        .whole();
                auto& carried = link_time_[sends ? 0 : 1];
                carried = layouts::checked_sum(carried, added.duration);
            } else {
                added.duration = cost_.compute(*op, rank);
                found_.compute += layouts::to_seconds(added.duration);
                const bool attends = op->kind == OpKind::attend;
                if (attends) found_.flop += schedule.flop(*op);
                if (attends) powered_flop_ += cost_.computed_flop(*op);
            }
            auto& queue = lane(added.lane).ops;
            if (!queue.empty()) added.before = queue.back();
            queue.push_back(static_cast<OpIndex>(nodes_.size()));
            nodes_.push_back(added);
        }
        found_.operations = static_cast<std::int64_t>(nodes_.size());
    }

    /// Whether it is known when everything has ended that the operation waits for.
    bool make_ready(Node& self) {
        if (self.ready >= 0) return true;
        Picoseconds ready = self.issued;
        const auto wait_for = [&](OpIndex index) {
            const auto& other = node(index);
            ready = std::max(ready, other.end);
            return other.end >= 0;
        };
        if (self.before >= 0 && !wait_for(self.before)) return false;
        for (int i = 0; i < self.after_count; ++i)
            if (!wait_for(self.after[static_cast<std::size_t>(i)])) return false;
        self.ready = ready;
        return true;
    }

    /// Ends what can end; whether anything did.
    bool advance() {
        bool any = false;
        for (auto& [ops, next] : lanes_)
            for (; next < ops.size(); any = true, ++next) {
                auto& self = node(ops[next]);
                if (self.end >= 0) continue;  // by its other half
                if (!make_ready(self)) break;
                if (self.kind == OpKind::send || self.kind == OpKind::receive) {
                    auto& [others, other_next] = lane(sim::counterpart(self.lane));
                    if (next < others.size()) {  // the half of the same number
                        auto& other = node(others[next]);
                        if (!make_ready(other)) break;
                        other.end = layouts::checked_sum(std::max(self.ready, other.ready), other.duration);
                        self.end = layouts::checked_sum(std::max(self.ready, other.ready), self.duration);
                        continue;
                    }
                }
                self.end = self.kind == OpKind::attend && inside_ ? end_inside(self)
                                                                  : layouts::checked_sum(self.ready, self.duration);
            }
        return any;
    }

    /// Of an attend of a launch that waits inside.
    Picoseconds end_inside(const Node& self) {
        Picoseconds block = 0, gradient = 0;
        for (int i = 0; i < self.after_count; ++i) {
            const auto& before = node(self.after[static_cast<std::size_t>(i)]);
            auto& time = before.moves_gradient ? gradient : block;
            time = std::max(time, before.end);
        }
        const auto end = inside_->end_of_next_attend(self.ready, block, gradient, 1);
        inside_->ended(end);
        return end;
    }

    /// Ranks that do not do the same can leave halves that wait for each other: then one is taken as met.
    bool force() {
        for (auto& [ops, next] : lanes_) {
            if (next >= ops.size()) continue;
            auto& self = node(ops[next]);
            if (!make_ready(self)) continue;
            self.end = layouts::checked_sum(self.ready, self.duration);
            return true;
        }
        return false;
    }

    sim::CostModel cost_;
    std::vector<Node> nodes_;
    std::vector<LaneQueue> lanes_;
    std::array<Picoseconds, 2> link_time_{};  // out, in
    Picoseconds behind_ = 0;
    std::optional<sim::KeyLaunches> inside_;  // where launches wait inside
    OneRank found_;
    double powered_flop_ = 0;
};

}  // namespace

OneRank play_one_rank(const layouts::Schedule& schedule, const sim::Machine& machine, const sim::SimOptions& options,
                      int rank) {
    const auto tiles = options.compute == sim::ComputeModel::tiles ? std::make_shared<sim::TileModel>(schedule, machine)
                                                                   : std::shared_ptr<sim::TileModel>();
    if (!sim::power_limits_clocks(schedule, machine, options))
        return OneRankPlayer(schedule, machine, options, rank, 1, tiles).play();
    OneRank found;
    double found_at = 0;
    const auto clock = sim::find_sustained_clocks(1, options, [&](const std::vector<double>& clocks) {
        found_at = clocks.front();
        OneRankPlayer player(schedule, machine, options, rank, found_at, tiles);
        found = player.play();
        sim::PlayedPass pass{{}, {player.computed_flop()}, {player.power(schedule, machine, rank)}};
        pass.prediction.makespan = layouts::to_picoseconds(found.seconds);
        pass.prediction.ranks.emplace_back().compute = layouts::to_picoseconds(found.compute);
        return pass;
    });
    return clock.front() == found_at ? found
                                     : OneRankPlayer(schedule, machine, options, rank, clock.front(), tiles).play();
}

}  // namespace ringlab::experiments
