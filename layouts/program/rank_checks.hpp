#pragma once

#include "layouts/program/program.hpp"

#include <map>
#include <set>
#include <vector>

namespace ringlab::layouts {

/// Checks the operations of one rank and makes its program, in which no halves of messages are matched yet. Throws
/// Error as resolve() does.
RankProgram resolve_rank(const Schedule& schedule, int rank);

/// Whether both parts have the same tokens in the same order, possibly in different blocks.
bool same_tokens(const Schedule& schedule, const Part& a, const Part& b);

/// Finds the lanes of receives on which the order of arrivals matters, because an operation waits for a later message
/// than the one that it touches. Operations of one rank are added in schedule order.
class ArrivalOrder {
public:
    explicit ArrivalOrder(int lanes) : of_lane_(static_cast<std::size_t>(lanes)) {}

    void add(OpIndex op_index, const Op& op, const Operands& operands) {
        for (const auto before : op.after()) waited_for_.emplace(before, op.lane());
        for (const auto& operand : operands) {
            const auto slot = std::pair(operand.pool, operand.slot);
            if (const auto found = received_.find(slot); found != received_.end())
                // Lanes are told of once, so that a slot that takes messages all through the pass keeps few of them.
                std::erase_if(found->second, [&](const Receive& message) {
                    auto& is_relied_on = of_lane_[static_cast<std::size_t>(message.lane)].is_relied_on;
                    return is_relied_on = is_relied_on || !waited_for_.contains({message.op_index, op.lane()});
                });
            if (op.kind == OpKind::receive) received_[slot].push_back({op_index, op.lane()});
        }
        if (op.kind == OpKind::receive) of_lane_[static_cast<std::size_t>(op.lane())].senders.insert(op.peer);
    }

    /// Whether messages of a lane come from several ranks, so that nothing orders their arrivals, and some operation
    /// relies on their order.
    bool matters(Lane lane) const {
        const auto& one = of_lane_[static_cast<std::size_t>(lane)];
        return one.senders.size() > 1 && one.is_relied_on;
    }

private:
    struct OfLane {
        std::set<int> senders;
        bool is_relied_on = false;  // an operation touches a message without waiting for it
    };
    struct Receive {
        OpIndex op_index;
        Lane lane;
    };
    std::vector<OfLane> of_lane_;
    std::map<std::pair<Pool, int>, std::vector<Receive>> received_;  // by slot
    std::set<std::pair<OpIndex, Lane>> waited_for_;                  // by operations of a lane
};

/// Finds the groups of fused attends of a rank. Operations are added in schedule order.
class FusedLaunchFinder {
public:
    FusedLaunchFinder(Pass pass, int lanes) : pass_(pass), lane_needs_(static_cast<std::size_t>(lanes)) {}

    void add(const Op& op);
    std::vector<FusedLaunch> found() &&;

private:
    void finish();

    Pass pass_;
    std::vector<FusedLaunch> fused_launches_;
    FusedLaunch launch_;
    std::size_t section_begin_ = 0;  // position in launch_.attends of the current section's first attend
    // By operation: 1 + the index of the last attend that must have ended before the operation can begin, 0 if there is
    // none. The order of the compute lane is not counted. A result that a peer computed may depend on any attend of
    // this rank, so receiving it counts as the largest value.
    std::vector<std::size_t> needs_;
    std::vector<std::size_t> lane_needs_;  // by lane: the same for its last transfer
    std::vector<bool> attends_;            // by operation: whether it is an attend
};

}  // namespace ringlab::layouts
