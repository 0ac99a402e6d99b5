#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/ring/plan_tables.hpp"

#include <map>
#include <utility>
#include <vector>

namespace ringlab::tests {

/// Memory in stream order, as of PyTorch: what was released goes to the next who asks for as much on the same stream,
/// while earlier work of the stream may still be using it.
class ReusedMemory : public gpu::StreamMemory {
public:
    void* allocate(std::size_t bytes, cudaStream_t stream) override {
        if (bytes == 0) return nullptr;
        const Kind kind{bytes, stream};
        auto& free = free_[kind];
        if (free.empty()) {
            ++allocations;
            free.push_back(memory_.emplace_back(bytes).data());
        }
        auto* const memory = free.back();
        free.pop_back();
        kinds_[memory] = kind;
        return memory;
    }
    void release(void* memory) noexcept override {
        if (memory) free_[kinds_.at(memory)].push_back(memory);
    }

    int allocations = 0;

private:
    using Kind = std::pair<std::size_t, cudaStream_t>;
    std::vector<gpu::DeviceBuffer> memory_;
    std::map<Kind, std::vector<void*>> free_;
    std::map<void*, Kind> kinds_;
};

}  // namespace ringlab::tests
