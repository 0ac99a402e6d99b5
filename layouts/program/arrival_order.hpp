#pragma once

#include "layouts/program/program.hpp"

#include <map>
#include <set>
#include <vector>

namespace ringlab::layouts {

/// Finds the lanes of receives on which the order of arrivals matters, because an operation waits for a later message
/// than the one that it touches. Operations of one rank are added in schedule order.
class ArrivalOrder {
public:
    explicit ArrivalOrder(int lanes) : of_lane_(static_cast<std::size_t>(lanes)) {}

    void add(OpIndex which, const Op& op, const Operands& operands) {
        for (const auto before : op.after()) waited_for_.emplace(before, op.lane());
        for (const auto& operand : operands) {
            const auto slot = std::pair(operand.pool, operand.slot);
            if (const auto found = received_.find(slot); found != received_.end())
                // Lanes are told of once, so that a slot that takes messages all through the pass keeps few of them.
                std::erase_if(found->second, [&](const Receive& message) {
                    auto& is_relied_on = of_lane_[static_cast<std::size_t>(message.lane)].is_relied_on;
                    return is_relied_on = is_relied_on || !waited_for_.contains({message.which, op.lane()});
                });
            if (op.kind == OpKind::receive) received_[slot].push_back({which, op.lane()});
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
        OpIndex which;
        Lane lane;
    };
    std::vector<OfLane> of_lane_;
    std::map<std::pair<Pool, int>, std::vector<Receive>> received_;  // by slot
    std::set<std::pair<OpIndex, Lane>> waited_for_;                  // by operations of a lane
};

}  // namespace ringlab::layouts
