#pragma once

#include "layouts/schedule.hpp"

#include <memory>

namespace ringlab::layouts {

/// The schedule whose K and V are expanded from the latent before they travel.
inline constexpr const char* expanded_at_home = "expanded";

/// Schedule `options.algorithm` of a problem with a latent, which travels wherever the schedule sends K and V, as the
/// one key of a token. Of what has come, the heads' K and V are made before each attend, in one slot for all blocks;
/// behind it their gradient becomes the latent's, which travels wherever the schedule sends dK and dV.
///
/// Throws Error if K and V do not travel in that schedule.
std::unique_ptr<Schedule> make_latent_schedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                               const ScheduleOptions& options);

}  // namespace ringlab::layouts
