#pragma once

#include "layouts/basics/checked_arithmetic.hpp"
#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace ringlab::sim {

using layouts::OpIndex;
using layouts::Picoseconds;

/// Times at which a rank's host issues the operations of a pass. The host issues them in schedule order. But where
/// transfers are copies (no SMs), it issues a kernel as soon as it has issued what the kernel waits for, ahead of other
/// transfers, so that the GPU has work as early as possible.
class HostClock {
public:
    /// State of the host between two operations.
    struct State {
        Picoseconds now = 0;       ///< when it has issued all operations so far
        Picoseconds computed = 0;  ///< when it had issued the last operation that computes
        std::uint32_t run = 0;     ///< number of operations in the last run of consecutive ones that compute
    };

    /// For operations from index `first` on. `transfer` is the time to issue a transfer.
    HostClock(State state, bool issues_compute_early, Picoseconds transfer, OpIndex first = 0)
        : state_(state),
          issues_compute_early_(issues_compute_early),
          transfer_(transfer),
          first_(first),
          before_(state.now) {}

    /// Returns when operation `self` is issued; issuing it takes `cost`. If it goes ahead of transfers that were given
    /// before, calls delay(transfer, cost) for each of them.
    template <class Delay>
    Picoseconds issue(const layouts::Op& op, OpIndex self, Picoseconds cost, Delay delay) {
        auto& [now, computed, run] = state_;
        const auto came = std::exchange(now, layouts::checked_sum(now, cost));
        // A copy into a slot that this pass has not used yet is started by its sender alone.
        const bool begins_alone = issues_compute_early_ && op.kind == layouts::OpKind::receive &&
                                  !layouts::of_rows(op.pool) && op.after().empty();
        if (!issues_compute_early_ || op.transfers()) return begins_alone ? came : now;
        const auto first = std::exchange(first_, self + 1);
        const auto before = std::exchange(before_, now);
        const auto run_before = std::exchange(run, self == first ? run + 1 : 1);
        if (op.fused) return 0;  // the launch has been issued before, and waits inside the kernel
        OpIndex waits_for = -1;
        for (const auto one : op.after()) waits_for = std::max(waits_for, one);
        if (waits_for >= first) {
            computed = std::max(computed, came - (self - 1 - waits_for) * transfer_);
        } else if (waits_for >= 0) {  // before the last run of compute, which was issued ahead of it
            const auto begin = first - static_cast<OpIndex>(run_before);
            computed = std::max(computed, before - (first - 1 - begin) * cost - (begin - 1 - waits_for) * transfer_);
        }
        for (auto transfer = std::max(first, waits_for + 1); transfer < self; ++transfer) delay(transfer, cost);
        return computed = layouts::checked_sum(computed, cost);
    }

    const State& state() const { return state_; }

    /// Whether an operation still to come may be issued ahead of one that was given.
    bool is_open(OpIndex next) const { return issues_compute_early_ && first_ < next; }

private:
    State state_;
    bool issues_compute_early_;
    Picoseconds transfer_;
    OpIndex first_;       // index behind the last operation that computes
    Picoseconds before_;  // when everything before that index was issued
};

}  // namespace ringlab::sim
