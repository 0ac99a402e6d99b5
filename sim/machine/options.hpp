#pragma once

#include "layouts/basics/basic_types.hpp"
#include "sim/machine/jitter.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace ringlab::sim {

using layouts::Picoseconds;

/// How the time of an attend is computed.
enum class ComputeModel {
    tiles,  ///< list scheduling of its real tiles on the SMs
    rate,   ///< its FLOP at the machine's rate, or reading K and V if that takes longer: coarser, but fast enough for
            ///< thousands of ranks
};

/// The clock at which attends run.
enum class Clock {
    sustained,   ///< what power allows when the pass is repeated without end, as in training
    calibrated,  ///< that of the calibration, whose runs are short
};

/// What costs time in a pass. Every price of a machine file belongs to one of these.
enum class Cause {
    attends,  ///< attention kernels with their launches, and matrix products that expand a latent
    ends,     ///< what a pass does on the GPU before its first and behind its last operation
    issue,    ///< the host, which issues operations
    links,    ///< messages: latency, bytes, and the SMs that they hold
    memory,   ///< merges, adds and copies, and the memory bandwidth that attends and messages compete for
};

/// How a pass is simulated. The default is an undisturbed ring at the sustained clock.
struct SimOptions {
    bool trace = false;  ///< keep every span, not only totals
    ComputeModel compute = ComputeModel::tiles;
    Clock clock = Clock::sustained;
    // For the sustained clock: the pause between repeated passes, and how much of it other attends take.
    double pause_seconds = 0, pause_busy_seconds = 0;
    bool sharing = true;  ///< off: nothing shares links, memory or SMs with anything else

    /// Number of rings side by side. Each plays the schedule on a sequence of its own. Rank r of ring i is rank i *
    /// ranks + r, in options and predictions.
    int replicas = 1;
    std::vector<int> placement;  ///< GPU of each rank, counted host by host; empty: rank r on GPU r

    std::vector<Picoseconds> start;  ///< start of each rank, not negative; empty: all at 0
    Jitter jitter;
    std::optional<Cause> free;  ///< a cause that costs nothing: predicts the pass without it, see break_down()

    /// Simulate ranks that must behave alike once, see Fold. Off: all of them, with the same results.
    bool fold = true;
};

}  // namespace ringlab::sim
