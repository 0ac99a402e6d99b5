#pragma once

#include "sim/play/simulate.hpp"

#include <array>

namespace ringlab::sim {

inline constexpr std::array causes{Cause::attends, Cause::ends, Cause::issue, Cause::links, Cause::memory};

/// Name of a cause in tables: "attends", "begin and end", "issue", "links" or "memory".
const char* to_string(Cause cause);

/// Where the time of a pass goes. The entries of `saved` and shared() add up to `pass`.
struct Breakdown {
    Picoseconds pass = 0;
    /// In the order of `causes`: the time of the pass, minus its time when that cause costs nothing. Negative if the
    /// pass takes longer without the cause.
    std::array<Picoseconds, causes.size()> saved{};

    /// How the rank that ends last spends the pass; with launches() the three add up to `pass`.
    layouts::TimeOfRank last{};

    // These two lie within `last.computing`.
    Picoseconds tail = 0;       ///< same rank: time of its attends, minus that of their tiles spread evenly over all
                                ///< SMs; so launches, costs of work tiles and idle SMs
    Picoseconds imbalance = 0;  ///< compute time of the rank that computes longest, minus the mean of all ranks

    Picoseconds of(Cause cause) const { return saved[static_cast<std::size_t>(cause)]; }

    /// Time in which the rank that ends last neither computes nor transfers nor waits for a peer: its host has not
    /// issued the next operation, or the pass begins.
    Picoseconds launches() const { return pass - last.computing - last.transferring - last.waiting; }

    /// Time that no single cause saves alone, for example when a message hides behind an attend: both would have to go.
    /// Negative when several causes save the same time, for example when attends and messages compete for memory.
    Picoseconds shared() const;

    Breakdown& operator+=(const Breakdown& other);
};

/// Plays the pass once more for each cause, without that cause. `played` is what simulate() gave for the same options;
/// if it has no spans, the pass is played again to get them. Throws what simulate() throws.
Breakdown break_down(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                     const Prediction& played);

}  // namespace ringlab::sim
