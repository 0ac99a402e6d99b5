#pragma once

#include "layouts/checked.hpp"
#include "layouts/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace ringlab::sim {

using layouts::OpIndex;
using layouts::Picoseconds;

/// When a rank's host has issued the operations of a pass. They are given to it in schedule order; but where transfers
/// take no multiprocessors it enqueues computing as soon as what it waits for has been, so that the device has work as
/// early as can be.
class HostClock {
public:
    /// Where the host is between two operations.
    struct State {
        Picoseconds now = 0;       ///< when it has issued all that was given to it
        Picoseconds computed = 0;  ///< when it had issued what it computed last
        std::uint32_t last = 0;    ///< the lane and peer of the transfer that was given last; 0: that was none
        std::uint32_t run = 0;     ///< what computes, one behind another, when the last of such runs was given
    };

    /// Of operations from `first` on. A transfer takes `transfer` to issue, or longer.
    HostClock(State state, bool computes_first, Picoseconds transfer, OpIndex first = 0)
        : state_(state), computes_first_(computes_first), transfer_(transfer), first_(first), before_(state.now) {}

    /// Whether a transfer is right behind another one on its lane and with its peer.
    bool follows(const layouts::Op& op) const { return op.transfers() && place_of(op) == state_.last; }

    /// Time at which operation `self` is issued, which takes `cost`; calls delay(transfer, cost) for each one in front
    /// of it that is issued later for it.
    template <class Delay>
    Picoseconds issue(const layouts::Op& op, OpIndex self, Picoseconds cost, Delay delay) {
        auto& [now, computed, last, run] = state_;
        const auto came = std::exchange(now, layouts::later(now, cost));
        last = op.transfers() ? place_of(op) : 0;
        // A copy into a slot that nothing of the pass was in begins with its sender's part alone.
        const bool begins_alone =
            computes_first_ && op.kind == layouts::OpKind::receive && !layouts::of_rows(op.pool) && op.after().empty();
        if (!computes_first_ || op.transfers()) return begins_alone ? came : now;
        const auto first = std::exchange(first_, self + 1);
        const auto before = std::exchange(before_, now);
        const auto run_before = std::exchange(run, self == first ? run + 1 : 1);
        if (op.fused) return 0;  // its launch has been issued, and waits inside for what it needs
        OpIndex waits_for = -1;
        for (const auto one : op.after()) waits_for = std::max(waits_for, one);
        if (waits_for >= first) {
            computed = std::max(computed, came - (self - 1 - waits_for) * transfer_);
        } else if (waits_for >= 0) {  // in front of the last run, whose first was issued before it
            const auto begin = first - static_cast<OpIndex>(run_before);
            computed = std::max(computed, before - (first - 1 - begin) * cost - (begin - 1 - waits_for) * transfer_);
        }
        for (auto transfer = std::max(first, waits_for + 1); transfer < self; ++transfer) delay(transfer, cost);
        return computed = layouts::later(computed, cost);
    }

    const State& state() const { return state_; }

    /// Whether an operation that is still to come may go before one that was given.
    bool is_open(OpIndex next) const { return computes_first_ && first_ < next; }

private:
    /// Not 0, which is the compute lane's.
    static std::uint32_t place_of(const layouts::Op& op) {
        return static_cast<std::uint32_t>(op.peer) * 32 + static_cast<std::uint32_t>(op.lane());
    }

    State state_;
    bool computes_first_;
    Picoseconds transfer_;
    OpIndex first_;       // behind what it computed last
    Picoseconds before_;  // when all was issued that was given up to there
};

}  // namespace ringlab::sim
