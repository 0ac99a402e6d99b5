#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cuda_check.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/device/steady.hpp"
#include "gpu/kernels/common/clusters.hpp"

#include <cstdint>

namespace ringlab::gpu {
namespace {

constexpr int threads = 512, unroll = 8;

__global__ void __launch_bounds__(threads) read_kernel(const int4* from, std::int64_t chunks, int* sink) {
    const std::int64_t step = std::int64_t{gridDim.x} * threads;
    int all = 0;
    for (std::int64_t i = std::int64_t{blockIdx.x} * threads + threadIdx.x; i < chunks; i += unroll * step) {
        int4 some[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            some[u] = i + u * step < chunks ? __ldcs(from + i + u * step) : make_int4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < unroll; ++u) all |= some[u].x | some[u].y | some[u].z | some[u].w;
    }
    if (all == 1) *sink = all;  // never, but the compiler must not leave the reads out
}

/// Reads `bytes` bytes (a multiple of 16) of zeros in device memory as fast as the device can, and does nothing with
/// them. `sink` is an int in device memory. In stream order.
void read_memory(const void* memory, std::size_t bytes, void* sink, cudaStream_t stream) {
    const auto blocks = 2u * static_cast<unsigned>(sms_of_device());  // all run at the same time
    read_kernel<<<blocks, threads, 0, stream>>>(
        static_cast<const int4*>(memory), static_cast<std::int64_t>(bytes / sizeof(int4)), static_cast<int*>(sink));
    RINGLAB_CUDA_LAUNCHED("kernel that reads memory");
}

}  // namespace

double read_bytes_per_second() {
    constexpr std::size_t bytes = std::size_t{1} << 30;  // many times the L2 cache
    constexpr int repeats = 11;
    const Stream stream;
    DeviceBuffer memory(bytes), sink(sizeof(int));
    memory.fill(0, stream);
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
        const Event begin(Event::Use::timing), end(Event::Use::timing);
        begin.record(stream);
        read_memory(memory.data(), bytes, sink.data(), stream);
        end.record(stream);
        stream.synchronize();
        seconds.push_back(seconds_between(begin, end));
    }
    return static_cast<double>(bytes) / median(seconds);
}

}  // namespace ringlab::gpu
