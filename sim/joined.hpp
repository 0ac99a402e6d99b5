#pragma once

#include "sim/cost.hpp"

namespace ringlab::sim {

/// Whether ranks of the schedule have several attends in one launch, as far as the first of them tell.
bool joins_attends(const Schedule& schedule);

/// Attends of a rank that the schedule joins.
struct JoinedAttends {
    std::vector<TileModel::Joint> attends;
    std::vector<std::size_t> breaks{};  ///< as layouts::Join has them
};
std::vector<JoinedAttends> read_launches(const Schedule& schedule, int rank);

/// Seconds of each attend of a rank, in order, launches included. `apart`: of what does not wait for the launch's own
/// attends what waits for nothing is a launch, and the rest another, as where transfers are kernels that must not wait
/// behind it.
std::vector<double> launches_of(const Schedule& schedule, int rank, bool apart, TileModel& tiles,
                                const AttentionCost& cost);

}  // namespace ringlab::sim
