#pragma once

#include "layouts/program/program.hpp"

#include <algorithm>
#include <map>
#include <set>

// What resolve() checks and finds out of the operations of one rank, which are added in schedule order.

namespace ringlab::layouts {

/// Checks each operation of one rank by itself: peers, bytes, heads, slots. SlotContents checks how they interact
/// within a rank, resolve() how those of all ranks do.
class OperationCheck {
public:
    OperationCheck(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

    /// Throws Error that names rank and operation if the operation is malformed.
    void operator()(OpIndex which, const Op& op) const;

private:
    template <class Expect>
    void check_bytes(const Expect& expect, const Op& op) const;
    template <class Expect>
    void check_heads(const Expect& expect, const Op& op) const;
    template <class Expect>
    void check_operand(const Expect& expect, const Operand& operand) const;

    const Schedule& schedule_;
    int rank_;
};

/// Whether both parts have the same tokens in the same order, possibly in different blocks.
bool same_tokens(const Schedule& schedule, const Part& a, const Part& b);

/// Vector clocks of one rank: which of its operations are certain to have ended before another begins, because of the
/// order of lanes and of dependencies. Waiting for peers could only add order and is not considered.
class HappensBefore {
public:
    explicit HappensBefore(int lanes) : lanes_(index(lanes)), last_(lanes_, -1), length_(lanes_, 0) {}

    /// Adds the next operation in schedule order.
    void add(const Op& op) {
        const auto lane = index(op.lane());
        const auto begin = clocks_.size();
        clocks_.resize(begin + lanes_, 0);
        const auto follow = [&](OpIndex before) {
            if (before < 0) return;
            for (std::size_t l = 0; l < lanes_; ++l)
                clocks_[begin + l] = std::max(clocks_[begin + l], clocks_[index(before) * lanes_ + l]);
            const auto [its_lane, place] = places_[index(before)];
            clocks_[begin + its_lane] = std::max(clocks_[begin + its_lane], place + 1);
        };
        follow(last_[lane]);
        for (const auto before : op.after()) follow(before);
        last_[lane] = static_cast<OpIndex>(places_.size());
        places_.emplace_back(lane, length_[lane]++);
    }

    /// Whether operation `first` is certain to have ended before `second` begins.
    bool operator()(OpIndex first, OpIndex second) const {
        const auto [lane, place] = places_[index(first)];
        return clocks_[index(second) * lanes_ + lane] > place;
    }

private:
    static constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

    std::size_t lanes_;
    std::vector<OpIndex> last_;                                 // by lane
    std::vector<std::int32_t> length_;                          // by lane
    std::vector<std::pair<std::size_t, std::int32_t>> places_;  // by operation: its lane and index in it
    std::vector<std::int32_t> clocks_;                          // by operation and lane: how many have ended
};

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

/// Follows what each slot of one rank holds, operation by operation, and which operations last accessed it, to check
/// that a schedule uses its slots correctly.
class SlotContents {
public:
    SlotContents(const Schedule& schedule, int rank);

    /// Notes that operation `which` accesses `operand`; returns the first head that the slot holds. Throws Error if the
    /// slot does not hold what is read, or if the access conflicts with that of an earlier operation and `before` does
    /// not put the two in order.
    int use(OpIndex which, const Operand& operand, const HappensBefore& before);

    /// Throws Error if the running softmax of some rows was begun and never ended.
    void require_finished() const;

    /// Whether slot 0 of a gradient must be 0 at the start: it is added to before it is written, or not all of it is
    /// ever written.
    bool needs_zeroed(Pool gradient) const {
        return schedule_.keeps(gradient) &&
               (read_before_write_[static_cast<std::size_t>(gradient)] || !covers_own(gradient));
    }
    /// Whether some of slot 0 of the output is never written.
    bool has_unwritten_output() const { return !covers_own(Pool::output); }

private:
    struct Rectangle {
        HeadRange heads;
        Interval tokens;
    };
    struct SlotAccess {
        OpIndex op;
        int generation;
        Rectangle where;
        bool writes;
    };
    struct Slot {
        int generation = 0;  // counts how often the contents were replaced
        int block = -1;
        HeadRange heads;
        std::vector<Rectangle> written;
        std::vector<SlotAccess> visits;
    };

    static bool covered(Rectangle wanted, std::span<const Rectangle> by);
    bool is_given(const Operand& operand) const;
    bool is_input(Pool pool) const;
    bool covers_own(Pool pool) const;
    void replace_contents(Slot& slot, const Operand& operand) const;
    void check_order(OpIndex which, const Operand& operand, const Slot& slot, const HappensBefore& before) const;

    const Schedule& schedule_;
    int rank_;
    std::array<bool, pool_count> read_before_write_{};
    std::array<std::vector<Slot>, pool_count> slots_;
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
