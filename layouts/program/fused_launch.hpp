#pragma once

#include "layouts/schedules/schedule.hpp"

#include <vector>

namespace ringlab::layouts {

/// Two or more attends of a rank that the schedule marks as fused (Op::fused), so that a device may run them in one
/// launch.
///
/// Forward: no attend of the group waits for the end of another one. Backward: an attend may wait for an earlier one
/// through messages, when a peer adds to a gradient in between. One launch for the whole group must then begin the
/// attends in order before their inputs have arrived, wait inside the launch, and signal the end of each attend. A
/// device that cannot do that runs each section, up to the next of `section_begins`, as a launch of its own.
struct FusedLaunch {
    std::vector<std::size_t> attends;  ///< indices of the operations, in schedule order
    /// Positions in `attends` where a new section begins: that attend waits, directly or through other ranks, for an
    /// attend of the section before it.
    std::vector<std::size_t> section_begins;
};

/// Finds the groups of fused attends of a rank. Operations are added in schedule order.
class FusedLaunchFinder {
public:
    FusedLaunchFinder(Pass pass, int lanes) : pass_(pass), lane_needs_(static_cast<std::size_t>(lanes)) {}

    void add(const Op& op);
    std::vector<FusedLaunch> found() &&;

private:
    void finish();

    Pass pass_;
    std::vector<FusedLaunch> fused_launches_;
    FusedLaunch launch_;
    std::size_t section_begin_ = 0;  // position in launch_.attends of the current section's first attend
    // By operation: 1 + the index of the last attend that must have ended before the operation can begin, 0 if there is
    // none. The order of the compute lane is not counted. A result that a peer computed may depend on any attend of
    // this rank, so receiving it counts as the largest value.
    std::vector<std::size_t> needs_;
    std::vector<std::size_t> lane_needs_;  // by lane: the same for its last transfer
    std::vector<bool> attends_;            // by operation: whether it is an attend
};

}  // namespace ringlab::layouts
