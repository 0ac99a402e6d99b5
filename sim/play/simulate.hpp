#pragma once

#include "layouts/schedules/schedule.hpp"
#include "layouts/timeline/timeline.hpp"
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

}  // namespace ringlab::sim
