#pragma once

#include "layouts/units.hpp"
#include "sim/jitter.hpp"

#include <cstdint>
#include <vector>

namespace ringlab::sim {

using layouts::Picoseconds;

/// How long an attention block takes.
enum class ComputeModel {
    tiles,  ///< its real tiles, list-scheduled over the multiprocessors
    rate,   ///< its FLOP at the machine's rate, or reading K and V where that takes longer: coarser, and quick enough
            ///< for thousands of ranks
};

enum class Clock {
    calibrated,  ///< that of the calibration runs, which are short
    sustained,   ///< what power allows when the pass is repeated without end
};

struct SimOptions {
    bool trace = false;  ///< keep every span; otherwise totals alone
    ComputeModel compute = ComputeModel::tiles;
    Clock clock = Clock::calibrated;
    // Between repeated passes, for the sustained clock: how long, and for how long of it other attends run.
    double pause_seconds = 0, pause_busy_seconds = 0;
    bool sharing = true;  ///< off: everything has links, memory and multiprocessors to itself

    /// Rings side by side, each of which plays the schedule on a sequence of its own. Rank r of ring i is rank
    /// i * ranks + r, here and in what is predicted.
    int replicas = 1;
    std::vector<int> placement;  ///< GPU of each rank, numbered host by host; empty: rank r on GPU r

    std::vector<Picoseconds> start;  ///< when each rank starts, at least 0; empty: all at 0
    Jitter jitter;

    /// Operations of a rank that are looked at beyond the first unfinished one. Bounds memory; as long as it is larger
    /// than what slots let run ahead, the result does not depend on it.
    int look_ahead = 4096;

    /// Ranks that cannot differ are played once, see Fold. Off: all of them are, with the same results.
    bool fold = true;
};

}  // namespace ringlab::sim
