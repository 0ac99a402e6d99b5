#include "gpu/device/device_buffer.hpp"

#include "gpu/device/cuda_check.hpp"
#include "layouts/basics/require.hpp"

namespace ringlab::gpu {

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (cudaMalloc(&data_, bytes) == cudaErrorMemoryAllocation) {
        cudaGetLastError();  // this error is not sticky: clear it, so that a caller may go on with less
        std::size_t free_bytes = 0, total = 0;
        cudaMemGetInfo(&free_bytes, &total);
        throw NoMemory(
            fmt::format("no device memory for a buffer of {} bytes: {} of {} are free; use fewer tokens or "
                        "heads",
                        bytes, free_bytes, total));
    }
    RINGLAB_CUDA(cudaGetLastError());
}

DeviceBuffer::~DeviceBuffer() {
    if (data_) cudaFree(data_);  // a destructor does not throw; an error here shows at the next checked call
}

void DeviceBuffer::upload(const void* host) {
    if (bytes_ == 0) return;
    RINGLAB_CUDA(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice));
    RINGLAB_CUDA(cudaStreamSynchronize(nullptr));  // a small copy from pageable memory may return early
}

void DeviceBuffer::download(void* host) const {
    if (bytes_ > 0) RINGLAB_CUDA(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost));
}

void DeviceBuffer::fill(std::uint8_t byte, cudaStream_t stream) {
    if (bytes_ > 0) RINGLAB_CUDA(cudaMemsetAsync(data_, byte, bytes_, stream));
}

}  // namespace ringlab::gpu
