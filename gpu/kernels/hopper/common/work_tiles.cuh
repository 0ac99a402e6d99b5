#pragma once

#include "gpu/kernels/hopper/common/fused_launch.hpp"
#include "gpu/kernels/hopper/common/mbarrier.cuh"
#include "layouts/layouts/launch_order.hpp"

namespace ringlab::gpu::hopper {

/// An entry of the work list, for one head.
struct Place {
    int item, head;
};

using layouts::WorkTileOrder;

/// The number of the section that holds a work tile of the launch.
__device__ inline int section_of(int work_tile, const WorkTileOrder& order) {
    return work_tile / (order.section_tiles * order.heads_at_a_time);
}

/// What the work tile with this number in the launch is, by the order of for_each_work_tile_run().
__device__ inline Place place_of(int work_tile, const WorkTileOrder& order, int heads) {
    const int first = order.leading_tiles * heads;
    if (work_tile >= first) return {order.leading_tiles + (work_tile - first) / heads, (work_tile - first) % heads};
    const int section = section_of(work_tile, order),
              rest = work_tile - section * order.section_tiles * order.heads_at_a_time;
    return {section % order.sections * order.section_tiles + rest / order.heads_at_a_time,
            section / order.sections * order.heads_at_a_time + rest % order.heads_at_a_time};
}

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
