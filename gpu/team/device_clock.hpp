#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/team/team.hpp"
#include "layouts/basics/basic_types.hpp"

#include <optional>

namespace ringlab::gpu {

/// Turns a device's event times into times of the team's common clock (the root process's host clock).
///
/// An event can only be compared with events of the same device. So each device gets two anchors, one before and one
/// after what is measured. An anchor is an event on an idle stream between two readings of the host clock. The event is
/// assumed to have happened in the middle between the readings; of many tries the one with the closest readings counts.
/// Between the anchors the device's clock is assumed to run evenly, which also corrects its drift against the host
/// clock.
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
