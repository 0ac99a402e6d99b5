#pragma once

#include "gpu/kernels/hopper/joined.hpp"
#include "gpu/kernels/hopper/mbarrier.cuh"

namespace ringlab::gpu::hopper {

__device__ inline std::uint64_t nanoseconds() {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ inline std::uint32_t load_acquired(const std::uint32_t* flag) {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

__device__ inline void store_released(std::uint32_t* flag, std::uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/// By one thread, before its first bulk copy from a block: waits until it has arrived, but no longer than agreed. Then
/// it says so, and the launch goes on with whatever there is: a launch always ends, and the host tells. All that it
/// looks at is in this device's memory: where every thread block kept reading host memory, copies came 10 times later.
__device__ inline void await_block(const Joined& joined, int index) {
    const JoinedBlock& block = joined.blocks[index];
    const std::uint32_t* const ready = block.ready;
    if (ready && load_acquired(ready) != joined.pass) {
        constexpr int polls_between_looks = 64;
        const std::uint64_t begin = nanoseconds();
        for (int polls = 1; load_acquired(ready) != joined.pass; ++polls) {
            if (polls % polls_between_looks == 0) {
                if (load_acquired(joined.late) != 0) break;
                if (nanoseconds() - begin > joined.most_nanoseconds) {
                    store_released(joined.told, static_cast<std::uint32_t>(index) + 1);
                    store_released(joined.late, 1);
                    break;
                }
            }
            __nanosleep(50);
        }
    }
    fence_all_for_async();
    // The maps were written as ordinary memory.
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(&block.k) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(&block.v) : "memory");
}

}  // namespace ringlab::gpu::hopper
