#pragma once

#include "layouts/units.hpp"
#include "sim/jitter.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace ringlab::sim {

using layouts::Picoseconds;

/// How long an attention block takes.
enum class ComputeModel {
    tiles,  ///< its real tiles, list-scheduled over the multiprocessors
    rate,   ///< its FLOP at the machine's rate, or reading K and V where that takes longer: coarser, and quick enough
            ///< for thousands of ranks
};

/// The clock that attends run at.
enum class Clock {
    sustained,   ///< what power allows when the pass is repeated without end, as in training
    calibrated,  ///< that of the calibration runs, which are short
};

/// What costs time in a pass. Every price of a machine file belongs to one of them.
enum class Cause {
    attends,  ///< attention kernels with their launches, and products that expand a latent
    ends,     ///< what a pass does on the GPU before its first and behind its last operation
    issue,    ///< the host, which issues operations
    links,    ///< messages: latency, bytes, and the multiprocessors that they hold
    memory,   ///< merges, sums and copies, and attends and messages that compete for the memory's bandwidth
};

struct SimOptions {
    bool trace = false;  ///< keep every span; otherwise totals alone
    ComputeModel compute = ComputeModel::tiles;
    Clock clock = Clock::sustained;
    // Between repeated passes, for the sustained clock: how long, and for how long of it other attends run.
    double pause_seconds = 0, pause_busy_seconds = 0;
    bool sharing = true;  ///< off: everything has links, memory and multiprocessors to itself

    /// Rings side by side, each of which plays the schedule on a sequence of its own. Rank r of ring i is rank
    /// i * ranks + r, here and in what is predicted.
    int replicas = 1;
    std::vector<int> placement;  ///< GPU of each rank, numbered host by host; empty: rank r on GPU r

    std::vector<Picoseconds> start;  ///< when each rank starts, at least 0; empty: all at 0
    Jitter jitter;
    std::optional<Cause> free;  ///< costs nothing: what a pass would take without it, see break_down()

    /// Ranks that cannot differ are played once, see Fold. Off: all of them are, with the same results.
    bool fold = true;
};

}  // namespace ringlab::sim
