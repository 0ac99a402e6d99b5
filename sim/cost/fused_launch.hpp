#pragma once

#include "sim/cost/cost.hpp"

namespace ringlab::sim {

/// Whether a schedule has fused launches (several attends in one). Looks at the first attends of rank 0 only.
bool has_fused_launches(const Schedule& schedule);

/// A launch of a rank: one attend or, if the schedule fuses them, several.
struct AttendLaunch {
    std::vector<TileModel::FusedAttend> attends;
    std::vector<std::size_t> section_begins{};  ///< places where it may have to be cut, see layouts::FusedLaunch
};
std::vector<AttendLaunch> launches_of_rank(const Schedule& schedule, int rank);

/// Seconds of each attend of a rank, in order, launches included. `apart`: each stretch of a fused launch, between
/// `section_begins`, becomes two launches: attends that wait for nothing, and the rest. GPUs do that where transfers
/// are kernels, because these must not queue behind a launch that waits for them.
std::vector<double> attend_seconds_of_rank(const Schedule& schedule, int rank, bool apart, TileModel& tiles,
                                           const AttentionCost& cost);

}  // namespace ringlab::sim
