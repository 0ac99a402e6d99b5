#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace ringlab::gpu {
namespace {

/// A device's end of a ring of devices, which may compute meanwhile.
struct End {
    int device;
    DeviceBuffer out, in;
    Stream transfers{Stream::Use::transfers}, receives{Stream::Use::transfers}, compute = Stream();
    std::vector<Event> call_ends = {}, message_ends = {};

    void synchronize() const {
        for (const auto* stream : {&compute, &transfers, &receives}) stream->synchronize();
    }
};

std::vector<End> make_ring(int devices, std::int64_t bytes) {
    std::vector<End> ring;
    for (int device = 0; device < devices; ++device) {
        const DeviceScope scope(device);
        const int next = (device + 1) % devices;
        int possible = 0;
        RINGLAB_CUDA(cudaDeviceCanAccessPeer(&possible, device, next));
        if (possible && cudaDeviceEnablePeerAccess(next, 0) != cudaSuccess) cudaGetLastError();  // it already was
        const auto size = static_cast<std::size_t>(bytes);
        ring.push_back({device, DeviceBuffer(size), DeviceBuffer(size)});
    }
    return ring;
}

/// Sends one message from each device to the next by copy engines.
void copy_to_next(const std::vector<End>& ring, std::int64_t bytes) {
    for (std::size_t place = 0; place < ring.size(); ++place) {
        const auto& end = ring[place];
        const DeviceScope scope(end.device);
        const auto& next = ring[(place + 1) % ring.size()];
        RINGLAB_CUDA(cudaMemcpyPeerAsync(next.in.data(), next.device, end.out.data(), end.device,
                                         static_cast<std::size_t>(bytes), end.transfers));
    }
}

/// The same by NCCL; null in a program built without it.
std::function<void()> sender_over_nccl(const std::vector<End>& ring, std::int64_t bytes) {
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<TwoStreams> streams;
    for (const auto& end : ring) {
        from.push_back(end.out.data());
        to.push_back(end.in.data());
        streams.push_back({end.transfers, end.transfers});
    }
    const auto send = nccl_ring(from, to, bytes);
    if (!send) return nullptr;
    return [=] { send(streams); };
}

void record_into(std::vector<Event>& events, cudaStream_t stream) {
    events.emplace_back(Event::Use::timing).record(stream);
}

/// Mean seconds of a message of the slowest device.
double time_once(std::vector<End>& ring, int count, const std::function<void()>& send) {
    for (auto& end : ring) {
        const DeviceScope scope(end.device);
        end.transfers.synchronize();
        end.message_ends.clear();
        record_into(end.message_ends, end.transfers);
    }
    for (int i = 0; i < count; ++i) send();
    for (auto& end : ring) {
        const DeviceScope scope(end.device);
        record_into(end.message_ends, end.transfers);
    }
    double slowest = 0;
    for (auto& end : ring) {
        const DeviceScope scope(end.device);
        end.transfers.synchronize();
        slowest = std::max(slowest, seconds_between(end.message_ends.front(), end.message_ends.back()) / count);
    }
    return slowest;
}

constexpr int calls_in_a_row = 6, rounds = 3;
constexpr std::chrono::milliseconds rest{30};  // so that clocks are high again

/// Sends one message from each device to the next; null without the transport. Devices are connected.
std::function<void()> sender(const std::vector<End>& ring, std::int64_t bytes, const std::string& transport) {
    if (transport != "nccl") return [&ring, bytes] { copy_to_next(ring, bytes); };
    constexpr int all_blocks = 32;
    const auto send = nccl_ring_apart(static_cast<int>(ring.size()), bytes, all_blocks);
    if (!send) return nullptr;
    std::vector<TwoStreams> streams;
    for (const auto& end : ring) streams.push_back({end.transfers, end.receives});
    send(streams);
    return [=] { send(streams); };
}

}  // namespace

std::vector<LinkTimes> time_links(int devices, const std::vector<std::int64_t>& message_bytes, int repeats) {
    std::vector<LinkTimes> samples;
    if (devices < 2) return samples;
    constexpr int count = 10;  // messages in a row, so that starting the devices one after another hardly shows
    for (const auto bytes : message_bytes) {
        auto ring = make_ring(devices, bytes);
        for (auto& end : ring) {
            const DeviceScope scope(end.device);
            end.out.fill(0x3c, end.transfers);
        }
        const auto sample = [&](const char* transport, const std::function<void()>& send) {
            auto& one = samples.emplace_back(LinkTimes{transport, bytes, {}});
            time_once(ring, count, send);
            for (int repeat = 0; repeat < repeats; ++repeat) one.seconds.push_back(time_once(ring, count, send));
        };
        sample("copy", [&] { copy_to_next(ring, bytes); });
        if (const auto send = sender_over_nccl(ring, bytes)) sample("nccl", send);
    }
    return samples;
}

std::vector<CallTimes> time_busy_links(const std::vector<TimedCall>& calls, std::int64_t message_bytes,
                                       const std::string& transport) {
    const auto devices = static_cast<int>(calls.size());
    auto ring = make_ring(devices, message_bytes);
    const auto send = sender(ring, message_bytes, transport);
    if (!send) return {};
    std::vector<double> alone_seconds, beside_seconds, message_seconds;
    double call_seconds = 0;
    for (int round = 0; round < 2 * rounds + 1; ++round) {
        const bool alone = round % 2 == 0, counts = round > 0;
        for (auto& end : ring) {
            const DeviceScope scope(end.device);
            end.synchronize();
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
            end.synchronize();
        }
        const DeviceScope scope(0);
        auto& end = ring.front();
        for (std::size_t call = 1; call < end.call_ends.size(); ++call) {
            call_seconds = seconds_between(end.call_ends[call - 1], end.call_ends[call]);
            if (counts && call > 1) (alone ? alone_seconds : beside_seconds).push_back(call_seconds);
        }
        for (std::size_t message = 1; message < end.message_ends.size(); ++message)
            if (seconds_between(end.call_ends.front(), end.message_ends[message]) <
                seconds_between(end.call_ends.front(), end.call_ends.back()))
                message_seconds.push_back(seconds_between(end.message_ends[message - 1], end.message_ends[message]));
    }
    if (message_seconds.empty()) return {};
    return {{"message", {message_seconds}}, {"alone", {alone_seconds}}, {"beside", {beside_seconds}}};
}

}  // namespace ringlab::gpu
