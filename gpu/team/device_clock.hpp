#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/team/team.hpp"
#include "layouts/basics/basic_types.hpp"

#include <optional>

namespace ringlab::gpu {

/// Turns a device's event times into times of the team's common clock (the root process's host clock).
///
/// Events of one device can be compared with each other alone, so each device gets two anchors, before and after what
/// is measured: an event on an idle stream, between two readings of the host clock. The event happened between them,
/// taken to be in the middle; of many tries the one with the closest readings counts. Between the anchors the device's
/// clock is taken to run evenly, which also takes its drift against the host's out.
class DeviceClock {
public:
    explicit DeviceClock(const Team& team) : team_(&team) {}

    /// Waits for the device, twice in a clock's life: before and after. The device must be current.
    void anchor(cudaStream_t idle_stream);

    /// Since the clock's epoch; both anchors must have been set. `event` was recorded on the same device, has timing
    /// and has ended.
    layouts::Picoseconds time(cudaEvent_t event) const;

    /// Largest error of time() relative to another device's time().
    layouts::Picoseconds uncertainty() const;

private:
    struct Anchor {
        Event event{Event::Use::timing};
        Clock::time_point host;  // common clock
        Clock::duration half_bracket{};
    };

    const Team* team_;
    std::optional<Anchor> before_, after_;
};

}  // namespace ringlab::gpu
