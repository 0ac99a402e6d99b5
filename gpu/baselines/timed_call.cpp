#include "gpu/baselines/timed_call.hpp"

#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/device/steady.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

namespace ringlab::gpu {
namespace {

/// Device seconds of each of `count` calls in a row.
std::vector<double> burst(const TimedCall& call, std::size_t count, cudaStream_t stream,
                          const std::function<void()>& underway) {
    std::vector<Event> events;
    for (std::size_t i = 0; i <= count; ++i) events.emplace_back(Event::Use::timing);
    events.front().record(stream);
    for (std::size_t i = 1; i <= count; ++i) {
        call.call(stream);
        events[i].record(stream);
    }
    underway();
    RINGLAB_CUDA(cudaStreamSynchronize(stream));
    std::vector<double> seconds;
    for (std::size_t i = 1; i <= count; ++i) seconds.push_back(seconds_between(events[i - 1], events[i]));
    return seconds;
}

}  // namespace

std::vector<CallTimes> time_calls(std::span<const TimedCall> calls, const CallTiming& timing, const Nvml& nvml,
                                  std::vector<ClockSample>& clocks) {
    const Stream stream;
    int device = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    std::vector<CallTimes> samples;
    std::vector<std::size_t> counts;
    for (const auto& call : calls) {
        samples.push_back({call.name, {}});
        burst(call, 2, stream, [] {});  // so that modules are loaded, which happens at the first call
        const double once = median(burst(call, 3, stream, [] {}));
        const double least = timing.rest > 0 ? 3 : 6, most = 300;
        counts.push_back(static_cast<std::size_t>(std::clamp(std::ceil(timing.seconds / once), least, most)));
    }
    Steady steady(timing.warm_up_seconds);
    while (!calls.empty() && timing.warm_up_seconds > 0 && !steady.reached())
        for (const auto seconds : burst(calls.front(), counts.front(), stream, [] {})) steady.add(seconds);
    for (int round = 0; round < timing.rounds; ++round)
        for (std::size_t i = 0; i < calls.size(); ++i) {
            const auto begin = std::chrono::steady_clock::now();
            auto seconds = burst(calls[i], counts[i], stream, [&] {
                if (const auto sample = nvml.sample(device, ClockSample::Moment::during)) clocks.push_back(*sample);
            });
            if (timing.rest > 0) std::this_thread::sleep_for(timing.rest * (std::chrono::steady_clock::now() - begin));
            seconds.erase(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 3));
            samples[i].seconds.push_back(std::move(seconds));
        }
    return samples;
}

std::vector<CallTimes> time_bursts(std::span<const TimedCall> calls, const Nvml& nvml,
                                   std::vector<ClockSample>& clocks) {
    constexpr int passes = 10;  // of each call
    constexpr std::chrono::milliseconds rest{20};
    const Stream stream;
    int device = 0, l2_bytes = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device));
    DeviceBuffer other(8 * static_cast<std::size_t>(std::max(l2_bytes, 1 << 20)));
    const Event begin(Event::Use::timing), end(Event::Use::timing);
    std::vector<CallTimes> samples;
    std::vector<const TimedCall*> timed;
    for (const auto& call : calls) {
        if (!call.refresh) continue;
        timed.push_back(&call);
        samples.push_back({call.name, {{}}});
        call.call(stream);  // so that modules are loaded, which happens at the first call
    }
    std::uint64_t seed = 1000;
    for (int pass = 0; pass < passes; ++pass)
        for (std::size_t i = 0; i < timed.size(); ++i) {
            RINGLAB_CUDA(cudaStreamSynchronize(stream));
            std::this_thread::sleep_for(rest);
            timed[i]->refresh(seed += 10, stream);
            RINGLAB_CUDA(cudaMemsetAsync(other.data(), pass, other.bytes(), stream));
            begin.record(stream);
            timed[i]->call(stream);
            end.record(stream);
            if (const auto sample = nvml.sample(device, ClockSample::Moment::during)) clocks.push_back(*sample);
            RINGLAB_CUDA(cudaStreamSynchronize(stream));
            samples[i].seconds.front().push_back(seconds_between(begin, end));
        }
    return samples;
}

}  // namespace ringlab::gpu
