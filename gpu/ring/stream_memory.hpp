#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace ringlab::gpu {

/// Device memory in stream order, from whoever calls this library.
class StreamMemory {
public:
    virtual ~StreamMemory() = default;

    /// Memory, aligned to 256 bytes, for work that `stream` is given from now on. Throws NoMemory if there is none.
    virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;

    /// When all work that uses the memory has been enqueued: work that its stream is given later may get it.
    virtual void release(void* memory) noexcept = 0;
};

}  // namespace ringlab::gpu
