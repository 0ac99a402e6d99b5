#pragma once

#include "gpu/kernels/common/dropout.cuh"
#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/portable/portable.hpp"
#include "gpu/kernels/portable/shared_layouts.hpp"

// Forward pass of one attend: FlashAttention's online softmax (Dao et al. 2022, arXiv 2205.14135, algorithm 1, and
// 2307.08691) with the running (o, m, l) read from and written to global memory.
//
// A thread block holds O of one query tile and head in registers and goes over that tile's key tiles. There is one
// buffer for K and one for V: V is loaded while S = Q K^T runs, the next K while the softmax and P V run. Other thread
// blocks of the SM fill the remaining waits.

namespace ringlab::gpu::portable {

template <class T, DimClass dims, class Params>
__global__ void __launch_bounds__(ForwardConfig<dims>::warps * 32, ForwardConfig<dims>::blocks_per_sm)
    forward_kernel(const __grid_constant__ Params params) {
    using namespace device;
    using Config = ForwardConfig<dims>;
    constexpr int threads = Config::warps * 32, m_tiles = Config::warp_rows / 16;
    constexpr int s_tiles = Config::keys / 8, o_tiles = Config::value / 8;

    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t q_tile = shared_address(shared);
    const std::uint32_t k_tile = q_tile + Config::rows * Config::head * 2;
    const std::uint32_t v_tile = k_tile + Config::keys * Config::head * 2;

    const Geometry& geometry = params.geometry;
    const int head = static_cast<int>(blockIdx.x) % geometry.query_heads;
    const int batch = static_cast<int>(blockIdx.x) / geometry.query_heads;
    const int4 item = params.work.items[blockIdx.y];
    const auto q = head_rows<T>(params.q, batch, head, geometry.query_tokens);
    const auto k = head_rows<T>(params.k, batch, head / geometry.group, geometry.key_tokens);
    const auto v = head_rows<T>(params.v, batch, head / geometry.group, geometry.key_tokens);

    int entry = item.y < item.z ? params.work.entries[item.y] : 0;
    if (item.y < item.z) {
        load_tile<Config::rows, Config::head, threads>(q_tile, q, item.x * Config::rows);
        load_tile<Config::keys, Config::head, threads>(k_tile, k, (entry >> 1) * Config::keys);
    }
    commit_copies();

    // This thread's rows are first_row + 16 m + 8 r, its columns 8 n + first_column + {0, 1}.
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int first_row = item.x * Config::rows + warp * Config::warp_rows + lane / 4;
    const int first_column = 2 * (lane % 4);

    float o[m_tiles][o_tiles][4], m[m_tiles][2], l[m_tiles][2];
    set_zero(o);
#pragma unroll
    for (int i = 0; i < m_tiles; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[i][r] = minus_infinity();
            l[i][r] = 0;
        }
    // The carry's rows are most often whole pairs: asked once, so that all loads are under way together.
    const bool whole_pairs = params.carry_o.pairs_fit && params.v.dim == Config::value;
    const auto load_carry = [&](auto load) {
#pragma unroll
        for (int i = 0; i < m_tiles; ++i)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = first_row + 16 * i + 8 * r;
                if (row >= geometry.query_tokens) continue;
                m[i][r] = value_of(params.carry_m, batch, row, head);
                // Each of a row's four threads sums its own columns: one of them goes on from the carry.
                if (lane % 4 == 0) l[i][r] = value_of(params.carry_l, batch, row, head);
                const auto index = row_index(params.carry_o.strides, batch, row, head) + first_column;
#pragma unroll
                for (int n = 0; n < o_tiles; ++n) {
                    const float2 pair = load(index + 8 * n, params.v.dim - first_column - 8 * n);
                    o[i][n][2 * r] = pair.x;
                    o[i][n][2 * r + 1] = pair.y;
                }
            }
    };
    float* const carry_data = static_cast<float*>(params.carry_o.data);
    if (!params.first && whole_pairs)
        load_carry([&](std::int64_t at, int) { return *reinterpret_cast<const float2*>(carry_data + at); });
    else if (!params.first)
        load_carry([&](std::int64_t at, int count) { return load_pair(params.carry_o, at, count); });

    const std::uint32_t q_lane = lane_address<Config::head, LaneOrder::straight>(q_tile, warp * Config::warp_rows);
    const std::uint32_t k_lane = lane_address<Config::head, LaneOrder::crossed>(k_tile, 0);
    const std::uint32_t v_lane = lane_address<Config::value, LaneOrder::straight>(v_tile, 0);

#pragma unroll 1
    for (int e = item.y; e < item.z; ++e) {
        const int tile = entry >> 1;
        const bool partial = entry & 1;
        wait_copies<0>();
        __syncthreads();  // K is there, and nobody reads the last V any more
        load_tile<Config::keys, Config::value, threads>(v_tile, v, tile * Config::keys);
        commit_copies();

        float s[m_tiles][s_tiles][4];
        set_zero(s);
        multiply_rows<T, Config::head / 16, Config::head, Config::head>(s, q_lane, k_lane);

        __syncthreads();  // nobody reads this K any more
        if (e + 1 < item.z) {
            entry = params.work.entries[e + 1];
            load_tile<Config::keys, Config::head, threads>(k_tile, k, (entry >> 1) * Config::keys);
        }
        commit_copies();

        if (params.rule.rewrite) {
#pragma unroll
            for (int i = 0; i < m_tiles; ++i)
#pragma unroll
                for (int n = 0; n < s_tiles; ++n)
#pragma unroll
                    for (int c = 0; c < 4; ++c) s[i][n][c] = score_of(params.rule, s[i][n][c]);
        }
        if (partial) {
            int4 bounds[m_tiles][2];
#pragma unroll
            for (int i = 0; i < m_tiles; ++i)
#pragma unroll
                for (int r = 0; r < 2; ++r) bounds[i][r] = __ldg(geometry.row_bounds + first_row + 16 * i + 8 * r);
#pragma unroll
            for (int n = 0; n < s_tiles; ++n) {
                const int2 key = __ldg(
                    reinterpret_cast<const int2*>(geometry.key_positions + tile * Config::keys + 8 * n + first_column));
#pragma unroll
                for (int i = 0; i < m_tiles; ++i)
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        if (!sees(bounds[i][r], key.x)) s[i][n][2 * r] = minus_infinity();
                        if (!sees(bounds[i][r], key.y)) s[i][n][2 * r + 1] = minus_infinity();
                    }
            }
        }

        const float factor = params.rule.factor;
#pragma unroll
        for (int i = 0; i < m_tiles; ++i)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float largest = s[i][0][2 * r];
#pragma unroll
                for (int n = 0; n < s_tiles; ++n) largest = fmaxf(largest, fmaxf(s[i][n][2 * r], s[i][n][2 * r + 1]));
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
                const float new_m = fmaxf(m[i][r], largest * factor);
                // A row that has seen nothing yet keeps m = -inf; any finite offset then gives p = 0.
                const float offset = new_m == minus_infinity() ? 0.0f : new_m;
                const float rescale = exp2_fast(m[i][r] - offset);
                m[i][r] = new_m;
                float sum = 0;
#pragma unroll
                for (int n = 0; n < s_tiles; ++n)
#pragma unroll
                    for (int c = 2 * r; c < 2 * r + 2; ++c) {
                        s[i][n][c] = exp2_fast(s[i][n][c] * factor - offset);
                        sum += s[i][n][c];
                    }
                l[i][r] = l[i][r] * rescale + sum;
#pragma unroll
                for (int n = 0; n < o_tiles; ++n) {
                    o[i][n][2 * r] *= rescale;
                    o[i][n][2 * r + 1] *= rescale;
                }
            }

        if constexpr (DropsOut<Params>) {
            // What becomes of o, and not of l.
            const int* const positions = geometry.key_positions + tile * Config::keys;
            const HeadDraw draw(params.dropout, batch, head);
#pragma unroll
            for (int i = 0; i < m_tiles; ++i) {
                const int4* const rows = geometry.row_bounds + first_row + 16 * i;
                std::uint32_t kept[(Config::keys + 63) / 64];
                draw_rows<Config::keys>(
                    kept, draw, make_int2(__ldg(&rows[0].w), __ldg(&rows[8].w)), lane,
                    [&](int four) { return __ldg(reinterpret_cast<const int4*>(positions) + four); },
                    [&](int n) { return __ldg(reinterpret_cast<const int2*>(positions + 8 * n + first_column)); });
#pragma unroll
                for (int n = 0; n < s_tiles; ++n)
#pragma unroll
                    for (int c = 0; c < 4; ++c)
                        s[i][n][c] =
                            params.dropout.factor * if_kept(s[i][n][c], kept[n / 8], n / 2 % 4, bit_of_row(n, c));
            }
        }

        wait_copies<1>();
        __syncthreads();  // V is there
#pragma unroll
        for (int key = 0; key < Config::keys / 16; ++key) {
            std::uint32_t p[m_tiles][4];
#pragma unroll
            for (int i = 0; i < m_tiles; ++i) pack_operand<T>(p[i], s[i][2 * key], s[i][2 * key + 1]);
            multiply_patch<T>(o, p, v_lane + key * 16 * (Config::value * 2));
        }
    }

#pragma unroll
    for (int i = 0; i < m_tiles; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = l[i][r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const int row = first_row + 16 * i + 8 * r;
            if (row >= geometry.query_tokens) continue;
            const bool row_leader = lane % 4 == 0;
            if (!params.last) {
                if (row_leader) {
                    value_of(params.carry_m, batch, row, head) = m[i][r];
                    value_of(params.carry_l, batch, row, head) = sum;
                }
                const auto index = row_index(params.carry_o.strides, batch, row, head);
#pragma unroll
                for (int n = 0; n < o_tiles; ++n) {
                    const int column = 8 * n + first_column;
                    if (whole_pairs)
                        *reinterpret_cast<float2*>(carry_data + index + column) =
                            make_float2(o[i][n][2 * r], o[i][n][2 * r + 1]);
                    else
                        store_pair(params.carry_o, index + column, o[i][n][2 * r], o[i][n][2 * r + 1],
                                   params.v.dim - column);
                }
                continue;
            }
            if (row_leader && params.lse.data) value_of(params.lse, batch, row, head) = natural_lse(m[i][r], sum);
            const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
            for (const Elements& result : {params.o, params.o_rounded}) {
                if (!result.data) continue;
                const auto index = row_index(result.strides, batch, row, head);
#pragma unroll
                for (int n = 0; n < o_tiles; ++n) {
                    const int column = 8 * n + first_column;
                    store_pair(result, index + column, o[i][n][2 * r] * inverse, o[i][n][2 * r + 1] * inverse,
                               params.v.dim - column);
                }
            }
        }
}

template <DimClass dims, class Params>
void launch_forward(const Params& params, DType dtype, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(params.geometry.query_heads * params.geometry.batch),
                    static_cast<unsigned>(params.work.count));
    launch(dtype == DType::bf16 ? forward_kernel<__nv_bfloat16, dims, Params> : forward_kernel<__half, dims, Params>,
           "portable forward kernel", grid, ForwardConfig<dims>::warps * 32, ForwardShared<dims>::bytes, params,
           stream);
}

}  // namespace ringlab::gpu::portable
