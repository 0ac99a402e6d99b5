#pragma once

#include "layouts/schedule.hpp"

namespace ringlab::layouts {

/// Throws Error that says what differs unless both are of the same problem, layout and mask: who executes one pass
/// after the other keeps its tensors in between.
void require_same_work(const Schedule& forward, const Schedule& backward);

}  // namespace ringlab::layouts
