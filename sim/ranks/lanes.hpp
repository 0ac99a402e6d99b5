#pragma once

#include "layouts/schedules/schedule.hpp"

namespace ringlab::sim {

using layouts::Lane;

/// Limits of the event engine.
inline constexpr int most_channels = 8;
inline constexpr int most_lanes = 1 + 2 * most_channels;

/// The lane of the peer at the other end of a message.
constexpr Lane counterpart(Lane lane) { return lane % 2 == 1 ? lane + 1 : lane - 1; }

constexpr int channel_of(Lane lane) { return (lane - 1) / 2; }

}  // namespace ringlab::sim
