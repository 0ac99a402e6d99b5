#pragma once

#include "layouts/checked.hpp"
#include "layouts/schedule.hpp"

#include <algorithm>
#include <utility>

namespace ringlab::sim {

using layouts::OpIndex;
using layouts::Picoseconds;

/// When a rank's host has issued the operations of a pass. They are given to it in schedule order; but where transfers
/// take no multiprocessors it enqueues computing before the transfers just in front of it, if it waits for none of
/// them, so that the device has work as early as can be.
class HostClock {
public:
    /// Of operations from `first` on, from `now` on.
    HostClock(Picoseconds now, bool computes_first, OpIndex first = 0)
        : now_(now), computes_first_(computes_first), first_(first), before_(now) {}

    /// Time at which operation `self` is issued, which takes `cost`; calls delay(transfer, cost) for each one in front
    /// of it that is issued later for it.
    template <class Delay>
    Picoseconds issue(const layouts::Op& op, OpIndex self, Picoseconds cost, Delay delay) {
        const auto came = std::exchange(now_, layouts::later(now_, cost));
        // A copy into a slot that nothing of the pass was in begins with its sender's part alone.
        const bool begins_alone =
            computes_first_ && op.kind == layouts::OpKind::receive && !layouts::of_rows(op.pool) && op.after().empty();
        if (!computes_first_ || op.transfers()) return begins_alone ? came : now_;
        if (op.fused) {  // its launch has been issued, and waits inside for what it needs
            first_ = self + 1;
            return 0;
        }
        const auto first = std::exchange(first_, self + 1);
        const auto before = std::exchange(before_, now_);
        const auto after = op.after();
        if (std::any_of(after.begin(), after.end(), [&](OpIndex one) { return one >= first; })) return now_;
        for (auto transfer = first; transfer < self; ++transfer) delay(transfer, cost);
        return layouts::later(before, cost);
    }

    /// When all has been issued that was given to it.
    Picoseconds now() const { return now_; }

    /// Whether an operation that is still to come may go before one that was given.
    bool is_open(OpIndex next) const { return computes_first_ && first_ < next; }

private:
    Picoseconds now_;
    bool computes_first_;
    OpIndex first_;       // behind what it computed last
    Picoseconds before_;  // when it had issued that
};

}  // namespace ringlab::sim
