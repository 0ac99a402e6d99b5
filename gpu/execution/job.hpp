#pragma once

#include "gpu/device/nvml.hpp"
#include "gpu/execution/executor.hpp"
#include "layouts/program/program.hpp"

#include <span>
#include <vector>

namespace ringlab::gpu {

/// A rank and where it runs.
struct Seat {
    int global_rank = 0;
    int member = 0;
    int device = -1;  // as its own process numbers it; -1 in others
};

/// Everything that is known of a run before it touches a device.
struct Job {
    Team& team;
    const layouts::Schedule& forward;
    const layouts::Schedule* backward;
    std::span<const HostInputs> inputs;
    const GpuOptions& options;
    std::vector<layouts::Program> programs;  // by pass
    std::vector<Seat> seats;                 // by global rank
    const Nvml& nvml;
    RankHosts hosts;  // reach_of_copies()

    int passes() const { return backward ? 2 : 1; }
};

/// How long a member waits for the others where all meet. It is longer than any other time-out, because a member that
/// is stuck in an operation knows more about the cause and should report first.
inline Clock::duration patience_of(const GpuOptions& options) { return 2 * options.timeout; }

}  // namespace ringlab::gpu
