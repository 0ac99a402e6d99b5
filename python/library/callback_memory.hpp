#pragma once

#include "gpu/ring/stream_memory.hpp"
#include "layouts/basics/require.hpp"
#include "python/library/ringlab_cuda.h"

namespace ringlab::python {

/// Device memory from the caller of the C functions.
class CallbackMemory : public gpu::StreamMemory {
public:
    CallbackMemory(const ringlab_cuda_allocator& allocator) : allocator_(allocator) {}

    void* allocate(std::size_t bytes, cudaStream_t stream) override {
        auto* const memory = allocator_.allocate(allocator_.context, bytes, stream);
        if (!memory) throw NoMemory(fmt::format("the caller has no device memory for a buffer of {} bytes", bytes));
        return memory;
    }
    void release(void* memory) noexcept override { allocator_.release(allocator_.context, memory); }

private:
    const ringlab_cuda_allocator allocator_;
};

}  // namespace ringlab::python
