#pragma once

#include "layouts/schedules/schedule.hpp"
#include "layouts/timeline/timeline.hpp"
#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"

#include <vector>

namespace ringlab::sim {

/// The prediction of simulate() without an event queue, for the case that nothing is shared: every operation begins at
/// the maximum of the ends that it waits for, and ends after its duration. Keeps what it has read, which
/// takes about 300 bytes an operation.
///
/// Equal to simulate() to the last picosecond, except for what a pass does behind its last operation. Throws Error if
/// the schedule cannot finish, if options.sharing is on, or if power would set clocks: it plays at the clock of the
/// calibration.
layouts::Timeline max_plus(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options);

/// When each rank ends, by the same recurrence, for schedules that are the same on every rank: operation i of rank r is
/// that of rank 0 with peer and blocks shifted by r. The operations of rank 0 are then a program that runs for all
/// ranks at once, one vector operation each. 16384 ranks x 16384 steps take seconds.
///
/// A sample of ranks is checked for that, and the sum of visible pairs is compared with the mask's. If ranks differ in
/// the pairs of a step, each rank's own are used. Throws Error if a check fails, if options.sharing is on, and for
/// ComputeModel::tiles, because tile times differ for equal numbers of pairs.
std::vector<Picoseconds> max_plus_symmetric(const layouts::Schedule& schedule, const Machine& machine,
                                            const SimOptions& options);

}  // namespace ringlab::sim
