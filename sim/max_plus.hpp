#pragma once

#include "layouts/schedule.hpp"
#include "layouts/timeline.hpp"
#include "sim/machine.hpp"
#include "sim/options.hpp"

#include <vector>

namespace ringlab::sim {

/// The same prediction without any event queue, where no resource is shared: every operation begins at the maximum of
/// the ends that it waits for, and ends its duration later. Reads the whole schedule at once, resolved: about 300 bytes
/// an operation.
///
/// Equal to simulate() to the last picosecond, but for what a pass does behind its last operation. Throws Error if the
/// schedule breaks its rules, and unless options.sharing is off: with resources shared the recurrence does not hold.
/// Clocks are those of the calibration: throws Error where power would set others.
layouts::Timeline max_plus(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options);

/// When each rank ends, by the same recurrence for schedules in which every rank does the same but for its number:
/// rank r's i-th operation is rank 0's with its peer and blocks r further on. The operations of one rank are then a
/// program that is run for all ranks at once, a vector operation each: 16384 ranks x 16384 steps in seconds.
///
/// That the schedule is of this kind is checked on a sample of ranks, and by the count of visible pairs of the whole
/// mask; where cells of a step differ between ranks, each rank's own are used. Throws Error if a check fails or
/// options.sharing is on, and for tile times, which are not the same for equal cells.
std::vector<Picoseconds> max_plus_symmetric(const layouts::Schedule& schedule, const Machine& machine,
                                            const SimOptions& options);

}  // namespace ringlab::sim
