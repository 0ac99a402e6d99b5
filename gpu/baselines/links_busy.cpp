#include "gpu/baselines/ceilings.hpp"
#include "gpu/cuda_handles.hpp"
#include "gpu/device_buffer.hpp"

#include <chrono>
#include <thread>

namespace ringlab::gpu {
namespace {

constexpr int calls_in_a_row = 6;
constexpr std::chrono::milliseconds rest{30};  // so that clocks are high again

struct End {
    int device;
    DeviceBuffer out, in;
    Stream compute = Stream(), transfers{Stream::Use::transfers};
    std::vector<Event> call_ends = {}, message_ends = {};
};

double seconds_between(Event& begin, Event& end) {
    float milliseconds = 0;
    RINGLAB_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    return static_cast<double>(milliseconds) * 1e-3;
}

void record_into(std::vector<Event>& events, cudaStream_t stream) {
    events.emplace_back(Event::Use::timing).record(stream);
}

}  // namespace

BusyLinkSamples time_busy_links(const std::vector<TimedCall>& calls, std::int64_t message_bytes, int rounds) {
    const auto devices = static_cast<int>(calls.size());
    std::vector<End> ring;
    for (int device = 0; device < devices; ++device) {
        const DeviceScope scope(device);
        int possible = 0;
        RINGLAB_CUDA(cudaDeviceCanAccessPeer(&possible, device, (device + 1) % devices));
        if (possible && cudaDeviceEnablePeerAccess((device + 1) % devices, 0) != cudaSuccess) cudaGetLastError();
        const auto size = static_cast<std::size_t>(message_bytes);
        ring.push_back({device, DeviceBuffer(size), DeviceBuffer(size)});
    }
    BusyLinkSamples samples;
    samples.bytes = message_bytes;
    double call_seconds = 0;
    for (int round = 0; round < 2 * rounds + 1; ++round) {
        const bool alone = round % 2 == 0, counts = round > 0;
        for (auto& end : ring) {
            const DeviceScope scope(end.device);
            end.compute.synchronize();
            end.transfers.synchronize();
            end.call_ends.clear();
            end.message_ends.clear();
        }
        std::this_thread::sleep_for(rest);
        for (auto& end : ring) {
            const DeviceScope scope(end.device);
            record_into(end.call_ends, end.compute);
            for (int call = 0; call < calls_in_a_row; ++call) {
                calls[static_cast<std::size_t>(end.device)].call(end.compute);
                record_into(end.call_ends, end.compute);
            }
            if (!alone) record_into(end.message_ends, end.transfers);
        }
        // As many messages as surely last for as long as the calls, at twice the speed that any link has.
        const auto most =
            std::max(8, static_cast<int>(calls_in_a_row * call_seconds * 1e12 / static_cast<double>(message_bytes)));
        for (int message = 0; !alone && message < std::min(most, 400); ++message)
            for (auto& end : ring) {
                const DeviceScope scope(end.device);
                auto& next = ring[static_cast<std::size_t>((end.device + 1) % devices)];
                RINGLAB_CUDA(cudaMemcpyPeerAsync(next.in.data(), next.device, end.out.data(), end.device,
                                                 static_cast<std::size_t>(message_bytes), end.transfers));
                record_into(end.message_ends, end.transfers);
            }
        for (auto& end : ring) {
            const DeviceScope scope(end.device);
            end.compute.synchronize();
            end.transfers.synchronize();
        }
        const DeviceScope scope(0);
        auto& end = ring.front();
        for (std::size_t call = 1; call < end.call_ends.size(); ++call) {
            call_seconds = seconds_between(end.call_ends[call - 1], end.call_ends[call]);
            if (counts && call > 1) (alone ? samples.calls_alone : samples.calls_beside).push_back(call_seconds);
        }
        for (std::size_t message = 1; message < end.message_ends.size(); ++message)
            if (seconds_between(end.call_ends.front(), end.message_ends[message]) <
                seconds_between(end.call_ends.front(), end.call_ends.back()))
                samples.messages.push_back(seconds_between(end.message_ends[message - 1], end.message_ends[message]));
    }
    return samples;
}

}  // namespace ringlab::gpu
