#pragma once

#include "gpu/device/nvml.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// A call that keeps one device busy. It enqueues work and returns.
struct TimedCall {
    std::string name;
    std::function<void(cudaStream_t)> call;
    /// Draws the inputs anew from a seed and computes what the call takes from an earlier pass; in stream order. Empty:
    /// the call is not timed in bursts.
    std::function<void(std::uint64_t seed, cudaStream_t)> refresh = {};
};

/// Times calls on the current device, back to back and in turns. In each round every call runs for one burst, of which
/// the first third is not counted. So all calls meet the same clocks and temperatures, and a device that becomes slower
/// over time is slower for all of them. One clock sample is taken during each burst.
std::vector<CallTimes> time_calls(std::span<const TimedCall> calls, const CallTiming& timing, const Nvml& nvml,
                                  std::vector<ClockSample>& clocks);

/// Times ten single passes of each call that has a refresh(), in turns, on the current device, as in cuDNN's published
/// tables: the device cools before each, and its clock rises. Before each pass the inputs
/// are drawn anew, L2 is cleared by writing over memory of eight times its size, and the host has enqueued everything
/// before the device reaches the pass, so that no launch is waited for. Times are between two events around the pass
/// and hold their overhead of 1 to 2 us. One round, all passes in order, those of the warm-up too.
std::vector<CallTimes> time_bursts(std::span<const TimedCall> calls, const Nvml& nvml,
                                   std::vector<ClockSample>& clocks);

}  // namespace ringlab::gpu
