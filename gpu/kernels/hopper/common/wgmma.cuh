#pragma once

#include "gpu/kernels/hopper/common/mbarrier.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

// The tensor-core instructions of sm_90a, issued by a warpgroup of four warps: D (64 x N, fp32, in registers) += A (64
// x 16) B (16 x N), asynchronously. B lies in shared memory, A there or in registers.
//
// Tiles in shared memory are those that bulk copies of 128-byte swizzled boxes leave: stretches of 64 columns (128
// bytes), one after another, each of all the tile's rows; a tile starts at a multiple of 1024 bytes. One tile serves
// two ways:
//   rows_outer     the tile's rows are those of A (or the columns of B), and the product sums over its columns;
//   rows_summed    the product sums over the tile's rows: A or B transposed.
//
// D in registers, with warp w of the warpgroup, g = lane / 4, t = lane % 4: d[4 j + 0, 1] are row 16 w + g, columns 8 j
// + 2 t and the next; d[4 j + 2, 3] the same of row 16 w + g + 8. A in registers has the same layout in pairs: columns
// 8 j of D, rounded, give a[0], a[1] for even and a[2], a[3] for odd j.
//
// Between issue and wait the registers of D (and of A) belong to the tensor cores: `pin` them on both sides so that the
// compiler moves nothing across.

namespace ringlab::gpu::hopper {

enum class Order { rows_outer, rows_summed };

/// A tile of 16-bit elements in shared memory, as the instruction wants it described.
template <Order order>
struct Operand {
    std::uint64_t bits;

    /// The tile at `address` with `rows` rows in all, or the part of it that starts at row `first_row`, a multiple of 8
    /// (rows_summed: of 16).
    __device__ Operand(std::uint32_t address, int rows, int first_row = 0) {
        constexpr std::uint64_t group_bytes = 1024;  // 8 rows of 128 bytes
        constexpr std::uint64_t swizzle_128 = 1;
        // In units of 16 bytes. From one stretch to the next counts only where the summed index runs along the rows.
        const std::uint64_t stretch = order == Order::rows_summed ? static_cast<std::uint64_t>(rows) * 128 >> 4 : 1;
        bits = (address + static_cast<std::uint32_t>(first_row) * 128 & 0x3ffff) >> 4 | stretch << 16 |
               (group_bytes >> 4) << 32 | swizzle_128 << 62;
    }

    /// The part of it that the 16 summed indices `k` (a constant, after unrolling) use. `rows` as in the constructor.
    __device__ std::uint64_t part(int k, int rows) const {
        return order == Order::rows_summed ? bits + (static_cast<std::uint64_t>(k) * 2048 >> 4)
                                           : bits + (static_cast<std::uint64_t>(k / 4 * rows * 128 + k % 4 * 32) >> 4);
    }

    /// The same tile, 64 columns further right: for rows_summed, the next 64 rows of A^T or columns of B.
    __device__ Operand after_stretches(int count, int rows) const {
        Operand next = *this;
        next.bits += static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(rows) * 128 >> 4;
        return next;
    }

    /// The same tile from a column of its first stretch on, a multiple of 16; for rows_summed.
    __device__ Operand after_columns(int count) const {
        Operand next = *this;
        next.bits += static_cast<std::uint64_t>(count) * 2 >> 4;
        return next;
    }
};

/// Before the first product, and before one whose registers were last written by other instructions.
__device__ inline void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes a group of the warpgroup's products.
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `pending` groups are under way.
template <int pending>
__device__ inline void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

template <int count>
__device__ inline void pin(float (&registers)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int count>
__device__ inline void pin(std::uint32_t (&registers)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Names of the first registers of D in the instruction's text, and the registers themselves, eight at a time.
#define RINGLAB_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define RINGLAB_NAMES_16 RINGLAB_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define RINGLAB_NAMES_24 RINGLAB_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define RINGLAB_NAMES_32 RINGLAB_NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define RINGLAB_NAMES_40 RINGLAB_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define RINGLAB_NAMES_48 RINGLAB_NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define RINGLAB_NAMES_56 RINGLAB_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define RINGLAB_NAMES_64 RINGLAB_NAMES_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define RINGLAB_NAMES_72 RINGLAB_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define RINGLAB_NAMES_80 RINGLAB_NAMES_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define RINGLAB_NAMES_88 RINGLAB_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define RINGLAB_NAMES_96 RINGLAB_NAMES_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define RINGLAB_NAMES_104 RINGLAB_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define RINGLAB_NAMES_112 RINGLAB_NAMES_104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define RINGLAB_NAMES_120 RINGLAB_NAMES_112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define RINGLAB_NAMES_128 RINGLAB_NAMES_120 ",%120,%121,%122,%123,%124,%125,%126,%127"

#define RINGLAB_D_FROM(i)                                                                                       \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define RINGLAB_D_8 RINGLAB_D_FROM(0)
#define RINGLAB_D_16 RINGLAB_D_FROM(0), RINGLAB_D_FROM(8)
#define RINGLAB_D_24 RINGLAB_D_16, RINGLAB_D_FROM(16)
#define RINGLAB_D_32 RINGLAB_D_24, RINGLAB_D_FROM(24)
#define RINGLAB_D_40 RINGLAB_D_32, RINGLAB_D_FROM(32)
#define RINGLAB_D_48 RINGLAB_D_40, RINGLAB_D_FROM(40)
#define RINGLAB_D_56 RINGLAB_D_48, RINGLAB_D_FROM(48)
#define RINGLAB_D_64 RINGLAB_D_56, RINGLAB_D_FROM(56)
#define RINGLAB_D_72 RINGLAB_D_64, RINGLAB_D_FROM(64)
#define RINGLAB_D_80 RINGLAB_D_72, RINGLAB_D_FROM(72)
#define RINGLAB_D_88 RINGLAB_D_80, RINGLAB_D_FROM(80)
#define RINGLAB_D_96 RINGLAB_D_88, RINGLAB_D_FROM(88)
#define RINGLAB_D_104 RINGLAB_D_96, RINGLAB_D_FROM(96)
#define RINGLAB_D_112 RINGLAB_D_104, RINGLAB_D_FROM(104)
#define RINGLAB_D_120 RINGLAB_D_112, RINGLAB_D_FROM(112)
#define RINGLAB_D_128 RINGLAB_D_120, RINGLAB_D_FROM(120)

// One instruction with A in shared memory; (n, registers of D, and the places of a, b, accumulate, two orders).
#define RINGLAB_WGMMA_SHARED(type, n, registers, a_place, b_place, p_place, ta_place, tb_place)                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_place                                                  \
                 ", 0;\n"                                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" RINGLAB_NAMES_##registers \
                 "}, %" #a_place ", %" #b_place ", p, 1, 1, %" #ta_place ", %" #tb_place ";\n}\n"               \
                 : RINGLAB_D_##registers                                                                        \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(a_order == Order::rows_summed ? 1 : 0),                 \
                   "n"(b_order == Order::rows_summed ? 1 : 0))

// The same with A in registers; (n, registers of D, and the places of a[0..3], b, accumulate, b's order).
#define RINGLAB_WGMMA_REGISTERS(type, n, registers, a0, a1, a2, a3, b_place, p_place, tb_place)                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_place                                                  \
                 ", 0;\n"                                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" RINGLAB_NAMES_##registers \
                 "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b_place ", p, 1, 1, %" #tb_place ";\n}\n"       \
                 : RINGLAB_D_##registers                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),                         \
                   "n"(b_order == Order::rows_summed ? 1 : 0))

#define RINGLAB_WGMMA(n, registers, p0, p1, p2, p3, p4, p5, p6)                        \
    if constexpr (N == n) {                                                            \
        if constexpr (a_in_registers && std::is_same_v<T, __nv_bfloat16>)              \
            RINGLAB_WGMMA_REGISTERS("bf16", n, registers, p0, p1, p2, p3, p4, p5, p6); \
        else if constexpr (a_in_registers)                                             \
            RINGLAB_WGMMA_REGISTERS("f16", n, registers, p0, p1, p2, p3, p4, p5, p6);  \
        else if constexpr (std::is_same_v<T, __nv_bfloat16>)                           \
            RINGLAB_WGMMA_SHARED("bf16", n, registers, p0, p1, p2, p3, p4);            \
        else                                                                           \
            RINGLAB_WGMMA_SHARED("f16", n, registers, p0, p1, p2, p3, p4);             \
        return;                                                                        \
    }

// One instruction: `a` is an Operand's part or four registers.
template <class T, Order a_order, Order b_order, int N, class A>
__device__ inline void issue(float (&d)[N / 2], const A& a, std::uint64_t b, int accumulate) {
    constexpr bool a_in_registers = !std::is_same_v<A, std::uint64_t>;
    RINGLAB_WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
    RINGLAB_WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
    RINGLAB_WGMMA(48, 24, 24, 25, 26, 27, 28, 29, 30)
    RINGLAB_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
    RINGLAB_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
    RINGLAB_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
    RINGLAB_WGMMA(112, 56, 56, 57, 58, 59, 60, 61, 62)
    RINGLAB_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
    RINGLAB_WGMMA(144, 72, 72, 73, 74, 75, 76, 77, 78)
    RINGLAB_WGMMA(160, 80, 80, 81, 82, 83, 84, 85, 86)
    RINGLAB_WGMMA(176, 88, 88, 89, 90, 91, 92, 93, 94)
    RINGLAB_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
    RINGLAB_WGMMA(208, 104, 104, 105, 106, 107, 108, 109, 110)
    RINGLAB_WGMMA(224, 112, 112, 113, 114, 115, 116, 117, 118)
    RINGLAB_WGMMA(240, 120, 120, 121, 122, 123, 124, 125, 126)
    RINGLAB_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)
    static_assert(N % 16 == 0 && N >= 16 && N <= 256);
}

#undef RINGLAB_WGMMA
#undef RINGLAB_WGMMA_SHARED
#undef RINGLAB_WGMMA_REGISTERS

/// Issues d = A B, or d += A B if `accumulate`, over a summed length of 16 * `depth`: A 64 x 16 depth, B 16 depth x 2
/// registers. `a_rows`, `b_rows`: all rows of the tiles that hold them.
template <class T, int depth, int a_rows, int b_rows, int registers, Order a_order, Order b_order>
__device__ inline void multiply(float (&d)[registers], const Operand<a_order>& a, const Operand<b_order>& b,
                                bool accumulate) {
#pragma unroll
    for (int k = 0; k < depth; ++k)
        issue<T, a_order, b_order, 2 * registers>(d, a.part(k, a_rows), b.part(k, b_rows), accumulate || k > 0);
}

/// The same with A in registers, 16 columns per element of `a`.
template <class T, int b_rows, int depth, int registers, Order b_order>
__device__ inline void multiply(float (&d)[registers], const std::uint32_t (&a)[depth][4], const Operand<b_order>& b,
                                bool accumulate) {
#pragma unroll
    for (int k = 0; k < depth; ++k)
        issue<T, Order::rows_outer, b_order, 2 * registers>(d, a[k], b.part(k, b_rows), accumulate || k > 0);
}

/// Four 8 x 8 matrices of 16-bit elements, held as mma and wgmma hold them, to shared memory; lane i gives the address
/// of row i % 8 (column, if transposed) of matrix i / 8.
template <bool transposed = false>
__device__ inline void store_matrices(std::uint32_t address, const std::uint32_t (&r)[4]) {
    if constexpr (transposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
}

}  // namespace ringlab::gpu::hopper
