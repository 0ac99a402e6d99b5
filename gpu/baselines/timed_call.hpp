#pragma once

#include "gpu/device/nvml.hpp"

#include <cuda_runtime_api.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// Something that keeps one device busy for a while; enqueues and returns.
struct TimedCall {
    std::string name;
    std::function<void(cudaStream_t)> call;
};

struct TimingOptions {
    int rounds = 5;
    double burst_seconds = 0.15;   ///< of one call's turn in a round
    double warm_up_seconds = 0.5;  ///< before all; see Steady
    /// Pause after each burst, in times of its length: 0 keeps the device busy and at the clock that power then
    /// allows; with long pauses and short bursts it keeps its highest clock.
    double rest = 0;
};

/// Device seconds of one call, by round and by repeat within it.
struct CallSamples {
    std::string name;
    std::vector<std::vector<double>> seconds;
};

/// Times calls on the current device, back to back and in turns: round after round each has a burst, of which the first
/// third is not counted. So all meet the same clocks and temperature, and what a device loses over time is lost to all.
/// Clock samples are taken while a burst runs, one each.
std::vector<CallSamples> time_calls(std::span<const TimedCall> calls, const TimingOptions& options, const Nvml& nvml,
                                    std::vector<ClockSample>& clocks);

}  // namespace ringlab::gpu
