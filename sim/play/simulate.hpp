#pragma once

#include "layouts/program/timeline.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::sim {

/// The predicted execution of a schedule on a machine.
struct Prediction {
    layouts::Timeline timeline;                 ///< has spans only with options.trace
    std::vector<layouts::Interval> host_issue;  ///< only with options.trace: when the host issued each span
    std::vector<layouts::RankTotals> ranks;     ///< totals of the same timeline, with or without spans
    Picoseconds makespan = 0;                   ///< end of the last operation of any rank

    /// Two estimates without a simulator, from the same durations, for the slowest rank: the sum over its steps of
    /// max(compute, messages sent or fetched), and of compute + messages. A prediction that is no better than these
    /// explains nothing.
    Picoseconds naive_overlapped = 0;
    Picoseconds naive_serial = 0;

    double clock = 1;            ///< lowest clock of attends of any rank, relative to the calibration
    std::vector<double> clocks;  ///< by rank, likewise; empty: all 1

    std::uint64_t events = 0;        ///< handled by the engine
    std::vector<std::string> notes;  ///< what the machine file does not cover exactly, for users
};

/// Plays the schedule on the machine. Predicts when each operation of each rank is posted (ready on its own side),
/// begins and ends.
///
/// A send and its receive are one flow that begins when both sides are ready; a fetch needs only its own rank. A
/// transfer that is a kernel holds its SMs from when its own side is ready. Each lane runs its operations in order.
///
/// The same inputs give the same picoseconds on every run. Throws Error if the ranks do not fit on the machine, an
/// option is out of range, the schedule has more than 15 channels, or it cannot finish (a send without its receive).
Prediction simulate(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options = {});

/// Makespans of `repeats` plays, in order; each uses its own repeat of the jitter. Runs on up to `threads` threads;
/// their number does not change the result.
std::vector<Picoseconds> simulate_repeatedly(const layouts::Schedule& schedule, const Machine& machine,
                                             const SimOptions& options, int repeats, int threads);

/// One rank's pass, as if every other rank did the same as this one at the same time.
struct OneRank {
    double seconds = 0;  ///< end of its last operation
    double compute = 0;  ///< of which its compute lane is at work
    double flop = 0;     ///< of the pairs that it attends to
    std::int64_t operations = 0;
};

/// Plays one rank alone, without an event queue. The peer of a message is assumed to be as far as this rank: a
/// send begins when this rank's own receive on the same channel is ready too, and the other way round. This is exact if
/// all ranks do the same and share nothing. It takes time for P operations, where all ranks take P^2. The total time of
/// the rank's messages on its link is a lower bound. Sharing of links with other ranks is ignored.
OneRank play_one_rank(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options, int rank);

}  // namespace ringlab::sim
