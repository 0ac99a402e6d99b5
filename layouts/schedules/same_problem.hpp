#pragma once

#include "layouts/schedules/schedule.hpp"

namespace ringlab::layouts {

/// Throws Error that says what differs unless both schedules have the same problem, layout and mask. Code that executes
/// one pass after the other needs this, because it keeps the tensors in between.
void require_same_problem(const Schedule& forward, const Schedule& backward);

}  // namespace ringlab::layouts
