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

/// Prices of single operations and ranks that replace the model's, to replay a measured pass. Everything that is not
/// given keeps the price of the model.
struct MeasuredPrices {
    struct OfOp {
        double factor = 1;            ///< on the time that the operation takes alone
        Picoseconds lag = 0;          ///< added to it: time between being ready and starting
        Picoseconds issue_delay = 0;  ///< how much later than predicted the host issues it
    };
    struct OfRank {
        std::vector<OfOp> ops;  ///< by index in the rank's schedule; empty: the model's. A message is its sender's.
        std::optional<Picoseconds> begin, end;  ///< of a pass
    };
    std::vector<OfRank> ranks;   ///< all of them, or none
    std::vector<double> clocks;  ///< by rank, relative to the calibration; empty: those that power allows

    OfOp of(int rank, layouts::OpIndex op) const {
        if (ranks.empty()) return {};
        const auto& ops = ranks[static_cast<std::size_t>(rank)].ops;
        return ops.empty() ? OfOp{} : ops[static_cast<std::size_t>(op)];
    }
    std::optional<Picoseconds> begin(int rank) const {
        return ranks.empty() ? std::nullopt : ranks[static_cast<std::size_t>(rank)].begin;
    }
    std::optional<Picoseconds> end(int rank) const {
        return ranks.empty() ? std::nullopt : ranks[static_cast<std::size_t>(rank)].end;
    }
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

    /// Prices to use instead of the model's, which must outlive the simulation; null: none.
    const MeasuredPrices* measured = nullptr;

    /// Simulate ranks that must behave alike once, see Fold. Off: all of them, with the same results.
    bool fold = true;
};

}  // namespace ringlab::sim
