#pragma once

#include <cstdint>

// How a warp adds its part of dQ, as it lies in the accumulators of 32 rows, to global memory.

namespace ringlab::gpu::portable {

/// Rows of dq of one head, from the first row of this lane on: row i at data + i * token_stride.
struct DqTarget {
    float* data;
    std::int64_t token_stride;
    int dim, rows;  // that exist
};

/// Whether four neighbours of a row can be added by one instruction.
#if __CUDA_ARCH__ >= 900
constexpr bool adds_quads = true;
#else
constexpr bool adds_quads = false;
#endif

__device__ inline void add_quad(float* target, const float4& x) {
#if __CUDA_ARCH__ >= 900
    // Bulk reductions from shared memory, 32 rows of 64 to 192 bytes a warp, were slower: 5 % at dim 128, half at 192.
    asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(target), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
#endif
}

__device__ inline float4 choose(bool first, const float4& x, const float4& y) {
    return make_float4(first ? x.x : y.x, first ? x.y : y.y, first ? x.z : y.z, first ? x.w : y.w);
}

/// Neighbouring lanes swap tiles of a patch: the even one gets four columns of the left tile, the odd one of the right
/// tile. quads[r] is of this lane's row 8 r.
__device__ inline void swap_tiles(float4 (&quads)[2], const float (&left)[4], const float (&right)[4], float scale) {
    const bool odd = threadIdx.x % 2;
    float mine[4], others[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        mine[c] = (odd ? right[c] : left[c]) * scale;
        others[c] = __shfl_xor_sync(~0u, odd ? left[c] : right[c], 1) * scale;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
        quads[r] = choose(odd, make_float4(others[2 * r], others[2 * r + 1], mine[2 * r], mine[2 * r + 1]),
                          make_float4(mine[2 * r], mine[2 * r + 1], others[2 * r], others[2 * r + 1]));
}

/// Adds `scale` times the tiles, whose columns are every `stride`-th patch of 16 from `first_patch` on. All rows exist,
/// and dq allows quads. An addition takes as long as it has rows, so the eight lanes of two rows add to 128 bytes of
/// one of them where patches are neighbours. Otherwise the four lanes of a row add to 64 bytes.
template <int stride, int m_tiles, int n_tiles>
__device__ inline void add_quads(const DqTarget& target, const float (&dq)[m_tiles][n_tiles][4], int first_patch,
                                 float scale) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int own_column = 16 * first_patch + lane % 2 * 8 + lane % 4 / 2 * 4;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
        if constexpr (stride == 1) {
            static_assert(n_tiles % 4 == 0);
            const bool odd_row = lane / 4 % 2;
            float* const row = target.data + (16 * m - odd_row) * target.token_stride;
#pragma unroll
            for (int n = 0; n < n_tiles; n += 4) {
                float4 left[2], right[2];
                swap_tiles(left, dq[m][n], dq[m][n + 1], scale);
                swap_tiles(right, dq[m][n + 2], dq[m][n + 3], scale);
                const int column = own_column + 8 * n + (odd_row ? 16 : 0);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float4 own = choose(odd_row, right[r], left[r]), sent = choose(odd_row, left[r], right[r]);
                    const float4 got = make_float4(__shfl_xor_sync(~0u, sent.x, 4), __shfl_xor_sync(~0u, sent.y, 4),
                                                   __shfl_xor_sync(~0u, sent.z, 4), __shfl_xor_sync(~0u, sent.w, 4));
                    if (column >= target.dim) continue;
                    float* const even = row + 8 * r * target.token_stride + column;
                    add_quad(even, choose(odd_row, got, own));
                    add_quad(even + target.token_stride, choose(odd_row, own, got));
                }
            }
        } else {
#pragma unroll
            for (int n = 0; n < n_tiles; n += 2) {
                float4 quads[2];
                swap_tiles(quads, dq[m][n], dq[m][n + 1], scale);
                const int column = own_column + n / 2 * stride * 16;
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    if (column < target.dim)
                        add_quad(target.data + (16 * m + 8 * r) * target.token_stride + column, quads[r]);
            }
        }
    }
}

/// The same one by one, for any dq.
template <int stride, int m_tiles, int n_tiles>
__device__ inline void add_each(const DqTarget& target, const float (&dq)[m_tiles][n_tiles][4], int first_patch,
                                float scale) {
    const int pair_column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int row = 16 * m + c / 2 * 8;
                const int column = 16 * (first_patch + n / 2 * stride) + n % 2 * 8 + pair_column + c % 2;
                if (row < target.rows && column < target.dim)
                    atomicAdd(target.data + row * target.token_stride + column, dq[m][n][c] * scale);
            }
}

}  // namespace ringlab::gpu::portable
