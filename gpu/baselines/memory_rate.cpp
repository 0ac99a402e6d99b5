#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/device/steady.hpp"
#include "gpu/kernels/rows/read_memory.hpp"

namespace ringlab::gpu {

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
