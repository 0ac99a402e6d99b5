#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/ranks/rank_memory.hpp"

#include <optional>
#include <string>

namespace ringlab::gpu {

/// A tensor that should be finite and is not.
struct NotFinite {
    int step = 0;
    std::string what;  ///< tensor, rank, step, operation
};

/// Looks at what operations write, in stream order.
class FiniteCheck {
public:
    /// For programs of at most so many instructions.
    explicit FiniteCheck(std::size_t instructions);

    void clear(cudaStream_t stream);

    /// After an instruction. `ends`: of an attend, whether its rows have just got their results.
    void look(const PassMemory& memory, const layouts::RankProgram& program, std::size_t index, bool ends,
              cudaStream_t stream);

    /// Waits for the device.
    std::optional<NotFinite> first(const layouts::RankProgram& program) const;

private:
    DeviceBuffer flags_;  // by instruction and tensor of it
};

}  // namespace ringlab::gpu
