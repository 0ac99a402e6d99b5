#pragma once

#include "gpu/execution/issuer.hpp"
#include "gpu/team/device_clock.hpp"
#include "layouts/timeline/timeline.hpp"

#include <vector>

namespace ringlab::gpu {

/// Spans of a rank's operations in a pass with a timeline, on the common clock. Begins are the moments at which
/// operations were posted. Attends of one launch are not timed one by one: the launch's time is divided among them by
/// their work, as far as this agrees with what they waited for and what waited for them.
std::vector<layouts::Span> spans_of(const Rank& rank, layouts::Pass pass, int ring_rank, const PassEvents& events,
                                    const DeviceClock& clock);

}  // namespace ringlab::gpu
