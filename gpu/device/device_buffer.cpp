#include "gpu/device/device_buffer.hpp"

#include "gpu/device/cuda_check.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <limits>

namespace ringlab::gpu {
namespace {

constexpr std::size_t most_pitch = std::numeric_limits<std::int32_t>::max();  // cudaDeviceProp::memPitch

class PlainMemory : public DeviceMemory {
public:
    void* allocate(std::size_t bytes) override {
        void* memory = nullptr;
        if (cudaMalloc(&memory, bytes) == cudaErrorMemoryAllocation) {
            cudaGetLastError();  // this error is not sticky: clear it, so that a caller may go on with less
            std::size_t free_bytes = 0, total = 0;
            cudaMemGetInfo(&free_bytes, &total);
            throw NoMemory(
                fmt::format("no device memory for a buffer of {} bytes: {} of {} are free; use fewer tokens or "
                            "heads",
                            bytes, free_bytes, total));
        }
        RINGLAB_CUDA(cudaGetLastError());
        return memory;
    }

    void release(void* memory) noexcept override {
        cudaFree(memory);  // a destructor does not throw; an error here shows at the next checked call
    }

    void upload(void* to, const void* from, std::size_t bytes) override {
        RINGLAB_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
        RINGLAB_CUDA(cudaStreamSynchronize(nullptr));  // a small copy from pageable memory may return early
    }

    std::shared_ptr<std::uint32_t> host_word() override {
        void* word = nullptr;
        RINGLAB_CUDA(cudaHostAlloc(&word, sizeof(std::uint32_t), cudaHostAllocMapped));
        *static_cast<std::uint32_t*>(word) = 0;
        return {static_cast<std::uint32_t*>(word), [](std::uint32_t* one) { cudaFreeHost(one); }};
    }
};

}  // namespace

DeviceMemory& DeviceMemory::plain() {
    static PlainMemory memory;
    return memory;
}

DeviceBuffer::DeviceBuffer(std::size_t bytes, DeviceMemory& memory)
    : memory_(&memory), data_(bytes > 0 ? memory.allocate(bytes) : nullptr), bytes_(bytes) {}

DeviceBuffer::~DeviceBuffer() {
    if (data_) memory_->release(data_);
}

void DeviceBuffer::upload(const void* host) {
    if (bytes_ > 0) memory_->upload(data_, host, bytes_);
}

void DeviceBuffer::download(void* host) const {
    if (bytes_ > 0) RINGLAB_CUDA(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost));
}

void DeviceBuffer::fill(std::uint8_t byte, cudaStream_t stream) {
    if (bytes_ > 0) RINGLAB_CUDA(cudaMemsetAsync(data_, byte, bytes_, stream));
}

void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
               std::size_t count, cudaStream_t stream) {
    if (count > 1 && std::max(to_pitch, from_pitch) <= most_pitch)
        return RINGLAB_CUDA(
            cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, count, cudaMemcpyDeviceToDevice, stream));
    for (std::size_t row = 0; row < count; ++row)
        RINGLAB_CUDA(cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch,
                                     static_cast<const char*>(from) + row * from_pitch, bytes, cudaMemcpyDeviceToDevice,
                                     stream));
}

void fill_rows(void* rows, std::size_t pitch, std::uint8_t byte, std::size_t bytes, std::size_t count,
               cudaStream_t stream) {
    if (count > 1 && pitch <= most_pitch)
        return RINGLAB_CUDA(cudaMemset2DAsync(rows, pitch, byte, bytes, count, stream));
    for (std::size_t row = 0; row < count; ++row)
        RINGLAB_CUDA(cudaMemsetAsync(static_cast<char*>(rows) + row * pitch, byte, bytes, stream));
}

}  // namespace ringlab::gpu
