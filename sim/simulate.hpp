#pragma once

#include "layouts/schedule.hpp"
#include "layouts/timeline.hpp"
#include "sim/machine.hpp"
#include "sim/options.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::sim {

/// What a machine is predicted to do with a schedule.
struct Prediction {
    layouts::Timeline timeline;                 ///< spans only if options.trace
    std::vector<layouts::Interval> host_issue;  ///< only if options.trace: by span, when the host issued it
    std::vector<layouts::RankTotals> ranks;     ///< of the same timeline, kept or not
    Picoseconds makespan = 0;                   ///< end of the last operation of any rank

    /// What one would guess without a simulator, from the same durations: of the slowest rank, the sum over its steps
    /// of max(compute, transfers sent or fetched) and of compute + transfers. A prediction that is no better than these
    /// explains nothing.
    Picoseconds naive_overlapped = 0;
    Picoseconds naive_serial = 0;

    double clock = 1;  ///< of attends of the rank where it is lowest, against that of the calibration

    std::uint64_t events = 0;        ///< that the engine handled
    std::vector<std::string> notes;  ///< what the machine file was stretched to cover
};

/// Plays the schedule on the machine and predicts when every operation of every rank is posted, begins and ends.
///
/// A send and its receive are one flow that begins when both sides are ready; a fetch needs nobody. Kernels that carry
/// out transfers hold their multiprocessors from when their own side is ready. Everything runs in lane order.
///
/// The same inputs give the same picoseconds, on every run. Throws Error if the ranks do not fit on the machine, an
/// option is out of range, the schedule has more than 8 channels, or it cannot be finished (a send without its
/// receive).
Prediction simulate(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options = {});

/// Makespans of `repeats` such plays, each with a repeat of the jitter of its own, in order; on up to `threads`
/// threads, whose number changes nothing.
std::vector<Picoseconds> simulate_repeatedly(const layouts::Schedule& schedule, const Machine& machine,
                                             const SimOptions& options, int repeats, int threads);

}  // namespace ringlab::sim
