#pragma once

#include "layouts/schedules/schedule.hpp"

#include <memory>

namespace ringlab::layouts {

/// Name of the schedule that expands K and V from the latent at their owner, before they travel.
inline constexpr const char* expanded_schedule_name = "expanded";

/// Schedule `options.schedule` for a problem with a latent. The latent travels wherever the schedule sends K and V, as
/// the K of a single kv head. Before each attend, K and V of its heads are expanded from the latent into a scratch
/// slot, which all blocks share; after a backward attend, dK and dV in such a slot are compressed to the latent's
/// gradient, which travels wherever the schedule sends dK and dV.
///
/// Throws Error if K and V do not travel in that schedule.
std::unique_ptr<Schedule> make_latent_schedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                               const ScheduleOptions& options);

}  // namespace ringlab::layouts
