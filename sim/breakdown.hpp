#pragma once

#include "sim/simulate.hpp"

#include <array>

namespace ringlab::sim {

inline constexpr std::array causes{Cause::attends, Cause::ends, Cause::issue, Cause::links, Cause::memory};

/// "attends", "begin and end", "issue", "links", "memory".
const char* to_string(Cause cause);

/// Where the time of a pass goes. `saved` and shared() add up to `pass`.
struct Breakdown {
    Picoseconds pass = 0;
    /// In the order of `causes`: the pass, less what the same pass takes where that cause costs nothing. Negative where
    /// the pass is longer without it.
    std::array<Picoseconds, causes.size()> saved{};

    // Within these, not beside them:
    Picoseconds late_peers = 0;  ///< of the rank that ends last: layouts::waited_for_peers()
    Picoseconds tail = 0;        ///< of the same rank: its attends beyond their tiles spread evenly over all
                                 ///< multiprocessors: launches, begins and ends of items, multiprocessors without one
    Picoseconds imbalance = 0;   ///< compute time of the rank with most, beyond the mean of the ranks

    Picoseconds of(Cause cause) const { return saved[static_cast<std::size_t>(cause)]; }

    /// What no cause saves alone, as where a message hides behind an attend and both would have to go. Negative where
    /// one time is saved by any of several, as that in which attends and messages compete for memory.
    Picoseconds shared() const;

    Breakdown& operator+=(const Breakdown& other);
};

/// Plays the pass once more without each cause, and once for its spans unless `played`, which simulate() gave for the
/// same options, has them. As simulate() for what it throws.
Breakdown break_down(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                     const Prediction& played);

}  // namespace ringlab::sim
