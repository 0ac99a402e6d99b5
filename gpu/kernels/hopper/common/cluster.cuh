#pragma once

#include <cstdint>

// Thread blocks that run at the same time and reach each other's shared memory.

namespace ringlab::gpu::hopper {

__device__ inline int blocks_of_cluster() {
    int count;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    return count;
}

__device__ inline int block_of_cluster() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// All threads of the cluster that have not ended.
__device__ inline void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// The same place in the shared memory of a block of the cluster.
__device__ inline std::uint32_t shared_of_block(std::uint32_t address, int block) {
    std::uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(block));
    return mapped;
}

/// What lies at such a place.
__device__ inline float load_of_block(std::uint32_t address) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

/// The same for four floats, at a multiple of 16 bytes.
__device__ inline float4 load_4_of_block(std::uint32_t address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

}  // namespace ringlab::gpu::hopper
