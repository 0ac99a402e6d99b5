#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace ringlab::gpu {

/// Where device memory comes from, and how host data gets there. Functions of one thread at a time, with the device
/// current.
class DeviceMemory {
public:
    virtual ~DeviceMemory() = default;

    /// Throws NoMemory if the device has too little.
    virtual void* allocate(std::size_t bytes) = 0;
    virtual void release(void* memory) noexcept = 0;

    /// Copies from host memory, which may change afterwards. The copy has ended before any launch that uses the memory.
    virtual void upload(void* to, const void* from, std::size_t bytes) = 0;

    /// A word of host memory that kernels can write, 0.
    virtual std::shared_ptr<std::uint32_t> host_word() = 0;

    /// By cudaMalloc, on the device that is current at each call. Uploads wait for the device.
    static DeviceMemory& plain();
};

/// Owns device memory. Moves, never copies. Uninitialised.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    /// Allocates; 0 bytes allocate nothing. `memory` must outlive the buffer.
    explicit DeviceBuffer(std::size_t bytes, DeviceMemory& memory = DeviceMemory::plain());
    ~DeviceBuffer();
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        std::swap(memory_, other.memory_);
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

    /// Copies bytes() bytes from host memory, see DeviceMemory::upload().
    void upload(const void* host);
    /// Copies bytes() bytes to host memory and waits.
    void download(void* host) const;

    /// Sets every byte, in stream order. 0xff makes every float a NaN.
    void fill(std::uint8_t byte, cudaStream_t stream);

private:
    DeviceMemory* memory_ = nullptr;
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Copies `count` rows of `bytes` each, in stream order; pitches are the bytes from one to the next. By a single call
/// where CUDA takes the pitches: up to 2 GiB - 1, and a head of 2Mi tokens can be longer.
void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
               std::size_t count, cudaStream_t stream);
/// Sets every byte of such rows likewise.
void fill_rows(void* rows, std::size_t pitch, std::uint8_t byte, std::size_t bytes, std::size_t count,
               cudaStream_t stream);

/// Device memory that holds these values.
template <class T>
DeviceBuffer uploaded(const std::vector<T>& values, DeviceMemory& memory = DeviceMemory::plain()) {
    DeviceBuffer buffer(values.size() * sizeof(T), memory);
    buffer.upload(values.data());
    return buffer;
}

}  // namespace ringlab::gpu
