#pragma once

#include "sim/cost.hpp"

namespace ringlab::sim {

/// Whether ranks of the schedule have several attends in one launch, as far as the first of them tell.
bool joins_attends(const Schedule& schedule);

/// Seconds of each attend of a rank, in order, launches included. `apart`: what waits for nothing is a launch of its
/// own, and the rest of them another, as where transfers are kernels that must not wait behind it.
std::vector<double> launches_of(const Schedule& schedule, int rank, bool apart, TileModel& tiles,
                                const AttentionCost& cost);

}  // namespace ringlab::sim
