#pragma once

#include "sim/simulate.hpp"

#include <span>
#include <vector>

namespace ringlab::sim {

/// Clocks of ranks, against that of the calibration, that power allows when a pass is repeated without end.
///
/// The energy of a FLOP goes as the square of the voltage, and that about as the clock: so power bounds rate x clock^2,
/// and attends that keep more of a multiprocessor busy run at a lower clock. Averaged over repeated passes with their
/// pauses, rank by rank: whoever waits for others has power to spare, and a pass is as long as that of the rank that
/// takes longest. From what was predicted at the clocks `before`, where a rank that computes for longer is taken to
/// last longer by as much. `flop`: of all pairs of the tiles that are computed, which take power whether they are seen
/// or not; `powers`: FLOP/s that each rank's GPU could do at the clock of the calibration; both by rank.
std::vector<double> sustained_clocks(const Prediction& prediction, std::span<const double> before,
                                     std::span<const double> flop, std::span<const double> powers,
                                     const SimOptions& options);

}  // namespace ringlab::sim
