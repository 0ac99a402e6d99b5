#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// The tensor-core instructions of sm_80 and later, and how a warp's operands lie in registers.
//
// With g = lane / 4 and t = lane % 4, a thread of mma.m16n8k16 holds
//   A (16 x 16): rows g and g + 8, columns 2t, 2t+1 and 2t+8, 2t+9 as four pairs (g, low), (g+8, low), (g, high),
//                (g+8, high);
//   B (16 x 8):  column g, rows 2t, 2t+1 and 2t+8, 2t+9 as two pairs;
//   C (16 x 8):  rows g and g + 8, columns 2t, 2t+1.
// So two neighbouring C tiles, rounded to 16 bits, are one A operand: a product's result feeds the next from registers.

namespace ringlab::gpu::device {

/// c += a * b on one warp.
template <class T>
__device__ inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

template <>
__device__ inline void mma<__nv_bfloat16>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                          std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void mma<__half>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two floats rounded to nearest even, the first in the low half.
template <class T>
__device__ inline std::uint32_t pack(float low, float high);

template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// The two that pack() puts together.
template <class T>
__device__ inline float2 unpack(std::uint32_t pair) {
    if constexpr (std::is_same_v<T, __half>)
        return __half22float2(reinterpret_cast<const __half2&>(pair));
    else
        return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

/// Two neighbouring C tiles as the A operand of the next product.
template <class T>
__device__ inline void pack_operand(std::uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack<T>(left[0], left[1]);
    a[1] = pack<T>(left[2], left[3]);
    a[2] = pack<T>(right[0], right[1]);
    a[3] = pack<T>(right[2], right[3]);
}

/// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// 16 bytes from global to shared memory, in the background; zeros instead if not `valid` (nothing is read then).
__device__ inline void copy_async_16(std::uint32_t shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ inline void copy_async_8(std::uint32_t shared, const void* global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared), "l"(global), "r"(valid ? 8 : 0)
                 : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/// Waits until at most `pending` of this thread's committed groups are under way; 0: for all its copies, also those of no
/// group, for which wait_group would not wait.
template <int pending>
__device__ inline void wait_copies() {
    if constexpr (pending == 0)
        asm volatile("cp.async.wait_all;\n" ::: "memory");
    else
        asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

/// 2^x, 2 units in the last place; exp2(-inf) = 0.
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

}  // namespace ringlab::gpu::device
