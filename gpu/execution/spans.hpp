#pragma once

#include "gpu/execution/issuer.hpp"
#include "gpu/team/device_clock.hpp"
#include "layouts/timeline/timeline.hpp"

#include <vector>

namespace ringlab::gpu {

/// When a rank's operations ran in a pass whose timeline was wanted, on the common clock; begins are still the moments
/// at which operations were posted. Attends of one launch have no times of their own: they share the launch's by the
/// work of each, as far as that agrees with what they waited for and what waited for them.
std::vector<layouts::Span> spans_of(const Rank& rank, layouts::Pass pass, int ring_rank, const PassEvents& events,
                                    const DeviceClock& clock);

}  // namespace ringlab::gpu
