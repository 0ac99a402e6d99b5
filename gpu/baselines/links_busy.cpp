#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"

#include <chrono>
#include <thread>

namespace ringlab::gpu {
namespace {

constexpr int calls_in_a_row = 6;
constexpr std::chrono::milliseconds rest{30};  // so that clocks are high again

/// A device's end of a ring whose devices compute meanwhile.
struct BusyEnd {
    int device;
    DeviceBuffer out, in;
    Stream compute = Stream(), transfers{Stream::Use::transfers}, receives{Stream::Use::transfers};
    std::vector<Event> call_ends = {}, message_ends = {};
};

void record_into(std::vector<Event>& events, cudaStream_t stream) {
    events.emplace_back(Event::Use::timing).record(stream);
}

/// Sends one message from each device to the next; null without the transport.
std::function<void()> sender(std::vector<BusyEnd>& ring, std::int64_t bytes, const std::string& transport,
                             int most_blocks) {
    if (transport == "nccl" && most_blocks > 0) {
        std::vector<TwoStreams> streams;
        for (const auto& end : ring) streams.push_back({end.transfers, end.receives});
        const auto send = nccl_ring_apart(static_cast<int>(ring.size()), bytes, most_blocks);
        if (!send) return nullptr;
        send(1, streams);
        return [=] { send(1, streams); };
    }
    if (transport == "nccl") {
        std::vector<const void*> from;
        std::vector<void*> to;
        std::vector<cudaStream_t> streams;
        for (const auto& end : ring) {
            from.push_back(end.out.data());
            to.push_back(end.in.data());
            streams.push_back(end.transfers);
        }
        const auto send = nccl_ring(from, to, bytes);
        if (!send) return nullptr;
        send(1, streams);  // connects the devices
        return [=] { send(1, streams); };
    }
    return [&ring, bytes] {
        for (std::size_t place = 0; place < ring.size(); ++place) {
            const auto& end = ring[place];
            const DeviceScope scope(end.device);
            const auto& next = ring[(place + 1) % ring.size()];
            RINGLAB_CUDA(cudaMemcpyPeerAsync(next.in.data(), next.device, end.out.data(), end.device,
                                             static_cast<std::size_t>(bytes), end.transfers));
        }
    };
}

}  // namespace

BusyLinkSamples time_busy_links(const std::vector<TimedCall>& calls, std::int64_t message_bytes, int rounds,
                                const std::string& transport, int most_blocks) {
    const auto devices = static_cast<int>(calls.size());
    std::vector<BusyEnd> ring;
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
    const auto send = sender(ring, message_bytes, transport, most_blocks);
    if (!send) return samples;
    double call_seconds = 0;
    for (int round = 0; round < 2 * rounds + 1; ++round) {
        const bool alone = round % 2 == 0, counts = round > 0;
        for (auto& end : ring) {
            const DeviceScope scope(end.device);
            end.compute.synchronize();
            end.transfers.synchronize();
            end.receives.synchronize();
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
        // Enough messages to last longer than the calls, even on a link twice as fast as any that exists.
        const auto most =
            std::max(8, static_cast<int>(calls_in_a_row * call_seconds * 1e12 / static_cast<double>(message_bytes)));
        for (int message = 0; !alone && message < std::min(most, 400); ++message) {
            send();
            for (auto& end : ring) {
                const DeviceScope scope(end.device);
                record_into(end.message_ends, end.transfers);
            }
        }
        for (auto& end : ring) {
            const DeviceScope scope(end.device);
            end.compute.synchronize();
            end.transfers.synchronize();
            end.receives.synchronize();
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
