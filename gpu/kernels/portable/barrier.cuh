#pragma once

#include <cstdint>

namespace ringlab::gpu::portable {

/// A barrier in shared memory (mbarrier, sm_80). Unlike __syncthreads() it lets a warp compute between its arrival and
/// its wait. Phases are numbered from 0. A warp waits for phase i before it arrives for phase i + 1.
struct Barrier {
    std::uint32_t address;

    /// By one thread, before a __syncthreads().
    __device__ void init(int warps) const {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(address), "r"(warps) : "memory");
    }

    /// By all lanes of a warp. Who waits sees what they wrote before.
    __device__ void arrive() const {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(address) : "memory");
    }

    /// Until all warps have arrived in the phase.
    __device__ void wait(int phase) const {
        asm volatile(
            "{\n.reg .pred done;\nagain_%=:\nmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
            "@!done bra again_%=;\n}\n" ::"r"(address),
            "r"(phase & 1)
            : "memory");
    }
};

}  // namespace ringlab::gpu::portable
