#pragma once

#include <cstdint>

// Ordinary loads from shared memory, and stores, at its own addresses; in the order they are written in.

namespace ringlab::gpu::hopper {

__device__ inline int load_shared_int(std::uint32_t address) {
    int x;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

__device__ inline int2 load_shared_int2(std::uint32_t address) {
    int2 x;
    asm volatile("ld.shared.v2.s32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
    return x;
}

__device__ inline int4 load_shared_int4(std::uint32_t address) {
    int4 x;
    asm volatile("ld.shared.v4.s32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

__device__ inline float2 load_shared_float2(std::uint32_t address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

__device__ inline float4 load_shared_4(std::uint32_t address) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

__device__ inline void store_shared(std::uint32_t address, int x) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

__device__ inline void store_shared(std::uint32_t address, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

__device__ inline void store_shared_2(std::uint32_t address, float2 x) {
    asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(x.x), "f"(x.y) : "memory");
}

}  // namespace ringlab::gpu::hopper
