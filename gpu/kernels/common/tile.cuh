#pragma once

#include "gpu/kernels/common/mma.cuh"
#include "gpu/kernels/common/params.hpp"

// Tiles of 16-bit elements in shared memory, and products of a warp over them.
//
// A tile is rows of `cols` elements, cols a multiple of 64. The 16-byte chunks of each 128-byte stretch of a row are
// permuted by the row: chunk c of row r lies at place c ^ (r % 8), so that the 8 rows of a matrix that ldmatrix reads
// at one column lie in 8 different groups of banks.

namespace ringlab::gpu::device {

__device__ inline std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16-bit elements of one head: row i at data + i * token_stride.
template <class T>
struct HeadRows {
    const T* data;
    std::int64_t token_stride;
    int rows;         // that exist
    int dim;          // elements of a row that exist
    bool chunks_fit;  // data, token_stride and dim are multiples of 16 bytes
};

/// One head of one batch element of an input whose tensor has `rows` tokens.
template <class T>
__device__ inline HeadRows<T> head_rows(const Input& input, std::int64_t batch, std::int64_t head, int rows) {
    return {static_cast<const T*>(input.data) + batch * input.strides.batch + head * input.strides.head,
            input.strides.token, rows, input.dim, input.chunks_fit};
}

/// As load_tile, element by element: for dims and strides that 16-byte copies cannot take. Not inlined, since its
/// registers would crowd the kernels' accumulators.
static __device__ __noinline__ void load_elements(std::uint32_t tile, const void* data, std::int64_t token_stride,
                                                  int first, int rows, int valid_rows, int cols, int dim) {
    for (int i = static_cast<int>(threadIdx.x); i < rows * cols; i += static_cast<int>(blockDim.x)) {
        const int row = i / cols, column = i % cols;
        std::uint16_t bits = 0;
        if (first + row < valid_rows && column < dim)
            bits = static_cast<const std::uint16_t*>(data)[(first + row) * token_stride + column];
        const std::uint32_t target =
            tile + row * (cols * 2) + column / 64 * 128 + ((column % 64 / 8 ^ row % 8) << 4) + column % 8 * 2;
        asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(target), "h"(bits) : "memory");
    }
}

/// Rows [first, first + rows) into a tile, zeros where there are none, by all threads of the block.
template <int rows, int cols, int threads, class T>
__device__ inline void load_tile(std::uint32_t tile, const HeadRows<T>& source, int first) {
    constexpr int rows_per_pass = threads / 8;  // 8 threads copy a stretch of 128 bytes
    static_assert(cols % 64 == 0 && rows_per_pass % 8 == 0 && rows % rows_per_pass == 0);
    if (!source.chunks_fit) {
        load_elements(tile, source.data, source.token_stride, first, rows, source.rows, cols, source.dim);
        return;
    }
    const int chunk = static_cast<int>(threadIdx.x) % 8, own_row = static_cast<int>(threadIdx.x) / 8;
    const std::uint32_t target = tile + own_row * (cols * 2) + ((chunk ^ (own_row % 8)) << 4);
    const T* row_data = source.data + (first + own_row) * source.token_stride + chunk * 8;
#pragma unroll
    for (int r = 0; r < rows; r += rows_per_pass) {
        const bool row_exists = first + own_row + r < source.rows;
#pragma unroll
        for (int s = 0; s < cols / 64; ++s)
            copy_async_16(target + r * (cols * 2) + s * 128, row_data + r * source.token_stride + s * 64,
                          row_exists && s * 64 + chunk * 8 < source.dim);
    }
}

/// How a lane's row and half-row of a 16 x 16 patch are chosen for ldmatrix: `straight` gives the matrices in the order
/// (rows 0-7, left), (rows 8-15, left), (rows 0-7, right), (rows 8-15, right); `crossed` swaps the middle two.
enum class LaneOrder { straight, crossed };

/// This lane's address in the patch at the tile's rows [first_row, first_row + 16), first columns; first_row % 8 == 0.
template <int cols, LaneOrder order>
__device__ inline std::uint32_t lane_address(std::uint32_t tile, int first_row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = order == LaneOrder::straight ? lane % 16 : lane % 8 + lane / 16 * 8;
    const int half = order == LaneOrder::straight ? lane / 16 : lane / 8 % 2;
    return tile + (first_row + row) * (cols * 2) + ((half ^ (row % 8)) << 4);
}

/// The same lane's address `patch` patches of 16 columns further right. Tiles start at multiples of 128 bytes.
__device__ inline std::uint32_t patch_address(std::uint32_t lane_address, int patch) {
    return (lane_address ^ ((patch % 4) << 5)) + patch / 4 * 128;
}

struct NoWork {
    __device__ void operator()(int) const {}
};

/// c[m][n] += A B^T for A and B both stored with the summed index along the row: A's lane address is straight, B's
/// crossed. `depth` counts patches of 16 along the summed index, m and n tiles of 16 rows of A and 8 rows of B.
/// `beside(patch)` is called after each patch, for work that runs beside the product.
template <class T, int depth, int a_cols, int b_cols, int m_tiles, int n_tiles, class Beside = NoWork>
__device__ inline void multiply_rows(float (&c)[m_tiles][n_tiles][4], std::uint32_t a_lane, std::uint32_t b_lane,
                                     Beside beside = {}) {
#pragma unroll
    for (int k = 0; k < depth; ++k) {
        std::uint32_t a[m_tiles][4];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) load_matrices(a[m], patch_address(a_lane, k) + m * 16 * (a_cols * 2));
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            std::uint32_t b[4];
            load_matrices(b, patch_address(b_lane, k) + n * 8 * (b_cols * 2));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma<T>(c[m][n], a[m], b[0], b[1]);
                mma<T>(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
        beside(k);
    }
}

/// c[m][n] += A B for A in registers (16 x 16 patch of the summed index `k`) and B stored with the summed index along
/// its rows, 16 of them from `b_lane` (straight). Its columns are every `stride`-th patch of 16.
template <class T, int stride = 1, int m_tiles, int n_tiles>
__device__ inline void multiply_patch(float (&c)[m_tiles][n_tiles][4], const std::uint32_t (&a)[m_tiles][4],
                                      std::uint32_t b_lane) {
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2) {
        std::uint32_t b[4];
        load_matrices_transposed(b, patch_address(b_lane, n / 2 * stride));
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            mma<T>(c[m][n], a[m], b[0], b[1]);
            mma<T>(c[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

template <int m_tiles, int n_tiles>
__device__ inline void set_zero(float (&c)[m_tiles][n_tiles][4]) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
}

/// tanh by 1 - 2 / (1 + e^2x): a few 1e-7 of absolute error times the cap, where tanh.approx would give 5e-4.
__device__ inline float tanh_of(float x) {
    constexpr float two_log2_e = 2.8853900817779268f, largest_exponent = 126.0f;
    return 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(fminf(x * two_log2_e, largest_exponent)));
}

/// A product q.k as a score in units of log2, where the rule rewrites scores.
__device__ inline float score_of(const ScoreRule& rule, float product) {
    return rule.cap_log2 > 0 ? rule.cap_log2 * tanh_of(product * rule.scale_to_cap) : product * rule.scale_to_log2;
}

/// The derivative of the soft cap at a score: 1 - tanh^2; 1 without a cap.
__device__ inline float slope_of(const ScoreRule& rule, float score) {
    if (rule.cap_log2 <= 0) return 1;
    const float tanh = __fdividef(score, rule.cap_log2);
    return 1.0f - tanh * tanh;
}

/// The natural-logarithm lse of a row whose running maximum, in log2 units, and sum are given. A NaN stays one: as
/// -inf, a part of a row that is NaN would vanish where parts are merged.
__device__ inline float natural_lse(float m, float l) {
    return l == 0 ? minus_infinity() : m * 0.69314718055994531f + logf(l);
}

/// Whether a row with bounds (begin, end, sink, -) sees the key at `position`.
__device__ inline bool sees(const int4& bounds, int position) {
    return (position >= bounds.x && position < bounds.y) || position < bounds.z;
}

__device__ inline std::int64_t row_index(const Strides& strides, std::int64_t batch, std::int64_t token,
                                         std::int64_t head) {
    return batch * strides.batch + token * strides.token + head * strides.head;
}

__device__ inline float& value_of(const RowValues& rows, int batch, int token, int head) {
    return rows.data[row_index(rows.strides, batch, token, head)];
}

__device__ inline float load_element(const Elements& from, std::int64_t index) {
    if (from.dtype == DType::fp32) return static_cast<const float*>(from.data)[index];
    if (from.dtype == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(from.data)[index]);
    return __half2float(static_cast<const __half*>(from.data)[index]);
}

__device__ inline void store_element(const Elements& to, std::int64_t index, float x) {
    if (to.dtype == DType::fp32)
        static_cast<float*>(to.data)[index] = x;
    else if (to.dtype == DType::bf16)
        static_cast<__nv_bfloat16*>(to.data)[index] = __float2bfloat16_rn(x);
    else
        static_cast<__half*>(to.data)[index] = __float2half_rn(x);
}

/// Elements index and index + 1 at an even column, from which on `count` exist (at most 0: none); others read as 0.
__device__ inline float2 load_pair(const Elements& from, std::int64_t index, int count) {
    if (count >= 2 && from.pairs_fit) {
        if (from.dtype == DType::fp32)
            return *reinterpret_cast<const float2*>(static_cast<const float*>(from.data) + index);
        if (from.dtype == DType::bf16)
            return __bfloat1622float2(
                *reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(from.data) + index));
        return __half22float2(*reinterpret_cast<const __half2*>(static_cast<const __half*>(from.data) + index));
    }
    return make_float2(count >= 1 ? load_element(from, index) : 0.0f,
                       count >= 2 ? load_element(from, index + 1) : 0.0f);
}

__device__ inline void store_pair(const Elements& to, std::int64_t index, float x, float y, int count) {
    if (count >= 2 && to.pairs_fit) {
        if (to.dtype == DType::fp32)
            *reinterpret_cast<float2*>(static_cast<float*>(to.data) + index) = make_float2(x, y);
        else
            *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(to.data) + index) =
                to.dtype == DType::bf16 ? pack<__nv_bfloat16>(x, y) : pack<__half>(x, y);
        return;
    }
    if (count >= 1) store_element(to, index, x);
    if (count >= 2) store_element(to, index + 1, y);
}

}  // namespace ringlab::gpu::device
