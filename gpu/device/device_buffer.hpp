#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ringlab::gpu {

/// Owns device memory of the device that was current when it was made. Moves, never copies. Uninitialised.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    /// Allocates; 0 bytes allocate nothing. Throws Error if the device has too little memory free.
    explicit DeviceBuffer(std::size_t bytes);
    ~DeviceBuffer();
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    void* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

    /// Copies bytes() bytes from or to host memory and waits.
    void upload(const void* host);
    void download(void* host) const;

    /// Sets every byte, in stream order. 0xff makes every float a NaN.
    void fill(std::uint8_t byte, cudaStream_t stream);

private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Device memory that holds these values.
template <class T>
DeviceBuffer uploaded(const std::vector<T>& values) {
    DeviceBuffer buffer(values.size() * sizeof(T));
    buffer.upload(values.data());
    return buffer;
}

}  // namespace ringlab::gpu
