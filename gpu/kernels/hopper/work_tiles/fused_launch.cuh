#pragma once

#include "gpu/kernels/hopper/ptx/mbarrier.cuh"
#include "gpu/kernels/hopper/work_tiles/fused_launch.hpp"

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

/// Waits until a flag has the number of this pass, for a limited time. After that time it reports `late` to the host,
/// and the launch goes on with whatever data there is. So a launch always ends, and the host throws the error. All that
/// it polls is in this device's memory: when every thread block polled host memory, copies arrived 10 times later.
__device__ inline void await_flag(const FusedLaunch& fused, const std::uint32_t* flag, std::uint32_t late) {
    if (!flag || load_acquired(flag) == fused.pass) return;
    constexpr int polls_between_looks = 64;
    const std::uint64_t begin = nanoseconds();
    for (int polls = 1; load_acquired(flag) != fused.pass; ++polls) {
        if (polls % polls_between_looks == 0) {
            if (load_acquired(fused.late) != 0) break;
            if (nanoseconds() - begin > fused.most_nanoseconds) {
                store_released(fused.reported, late);
                store_released(fused.late, 1);
                break;
            }
        }
        __nanosleep(50);
    }
}

/// Waits until a block has arrived. Called by one thread, before its first bulk copy from the block.
__device__ inline void await_block(const FusedLaunch& fused, int index) {
    const FusedLaunchBlock& block = fused.blocks[index];
    await_flag(fused, block.ready, 2 * static_cast<std::uint32_t>(index) + 1);
    fence_all_for_async();
    // The maps were written as ordinary memory.
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(&block.k) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(&block.v) : "memory");
}

/// Waits until a block's dk and dv may be touched. Called by whole warps.
__device__ inline void await_gradient(const FusedLaunch& fused, int index) {
    if (threadIdx.x % 32 == 0)
        await_flag(fused, fused.blocks[index].gradient_ready, 2 * static_cast<std::uint32_t>(index) + 2);
    __syncwarp();
}

}  // namespace ringlab::gpu::hopper
