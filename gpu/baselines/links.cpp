#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"

#include <algorithm>

namespace ringlab::gpu {
namespace {

/// A device's end of a ring of devices.
struct End {
    int device;
    DeviceBuffer out, in;
    Stream stream{Stream::Use::transfers};
    Event begin{Event::Use::timing}, finish{Event::Use::timing};
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
        ring.back().out.fill(0x3c, ring.back().stream);
    }
    return ring;
}

/// Mean seconds of a message of the slowest device.
double time_once(std::vector<End>& ring, int count, const std::function<void()>& send) {
    for (auto& end : ring) {
        const DeviceScope scope(end.device);
        end.stream.synchronize();
        end.begin.record(end.stream);
    }
    send();
    double slowest = 0;
    for (auto& end : ring) {
        const DeviceScope scope(end.device);
        end.finish.record(end.stream);
    }
    for (auto& end : ring) {
        const DeviceScope scope(end.device);
        end.stream.synchronize();
        slowest = std::max(slowest, seconds_between(end.begin, end.finish) / count);
    }
    return slowest;
}

}  // namespace

std::vector<LinkSamples> time_links(int devices, const std::vector<std::int64_t>& message_bytes, int repeats) {
    std::vector<LinkSamples> samples;
    if (devices < 2) return samples;
    constexpr int count = 10;  // messages in a row, so that starting the devices one after another hardly shows
    for (const auto bytes : message_bytes) {
        auto ring = make_ring(devices, bytes);
        const auto sample = [&](const char* transport, const std::function<void()>& send) {
            auto& one = samples.emplace_back(LinkSamples{transport, bytes, {}});
            time_once(ring, count, send);
            for (int repeat = 0; repeat < repeats; ++repeat) one.seconds.push_back(time_once(ring, count, send));
        };
        sample("copy", [&] {
            for (int i = 0; i < count; ++i)
                for (auto& end : ring) {
                    const DeviceScope scope(end.device);
                    auto& next = ring[static_cast<std::size_t>((end.device + 1) % devices)];
                    RINGLAB_CUDA(cudaMemcpyPeerAsync(next.in.data(), next.device, end.out.data(), end.device,
                                                     static_cast<std::size_t>(bytes), end.stream));
                }
        });
        std::vector<const void*> from;
        std::vector<void*> to;
        std::vector<cudaStream_t> streams;
        for (const auto& end : ring) {
            from.push_back(end.out.data());
            to.push_back(end.in.data());
            streams.push_back(end.stream);
        }
        if (const auto send = nccl_ring(from, to, bytes)) sample("nccl", [&] { send(count, streams); });
    }
    return samples;
}

}  // namespace ringlab::gpu
