#pragma once

#include "gpu/kernels/common/drops_out.hpp"
#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/portable/portable.hpp"
#include "gpu/kernels/portable/shared_layouts.hpp"

// Backward pass of one attend (FlashAttention, arXiv 2205.14135, appendix B; formulas in log2 units):
//     p = exp2(s - lse)    ds = p * (do.v - delta)    dv += p^T do    dk += ds^T q * scale    dq += ds k * scale
//
// A thread block stays on a key tile and goes over the query tiles of all query heads that read its kv head. So it sums
// dK and dV in registers and writes them once. It computes S^T = K Q^T and dP^T = V dO^T, because their rounded results
// are the left operands of dV and dK as they lie in registers. Only dQ, a sum over keys, needs dS from all warps: dS
// goes through shared memory, and each warp adds its part of dQ to global memory.

namespace ringlab::gpu::portable {

using namespace device;

/// Adds four neighbours of a row of dq, of which `count` exist.
__device__ inline void add_four(float* target, float4 x, int count, bool quads_fit) {
#if __CUDA_ARCH__ >= 900
    // Bulk reductions from shared memory, 32 rows of 64 to 192 bytes a warp, were slower: 5 % at dim 128, half at 192.
    if (quads_fit) {
        if (count > 0)
            asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(target), "f"(x.x), "f"(x.y), "f"(x.z),
                         "f"(x.w)
                         : "memory");
        return;
    }
#endif
    if (count > 0) atomicAdd(target, x.x);
    if (count > 1) atomicAdd(target + 1, x.y);
    if (count > 2) atomicAdd(target + 2, x.z);
    if (count > 3) atomicAdd(target + 3, x.w);
}

template <class T, DimClass dims, bool with_dq, class Params>
__global__ void __launch_bounds__(BackwardShared<dims>::threads, BackwardConfig<dims>::blocks_per_sm)
    backward_kernel(const __grid_constant__ Params params) {
    using namespace device;
    using Config = BackwardConfig<dims>;
    using Shared = BackwardShared<dims>;
    constexpr int threads = Shared::threads, q_tiles = Config::rows / 8;
    constexpr int dk_cols = Config::head / Config::dim_split, dv_cols = Config::value / Config::dim_split;
    constexpr int dq_m = 2, dq_cols = Shared::dq_cols;

    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    const Geometry& geometry = params.geometry;
    const int kv_heads = geometry.query_heads / geometry.group;
    const int kv_head = static_cast<int>(blockIdx.x) % kv_heads, batch = static_cast<int>(blockIdx.x) / kv_heads;
    const int4 item = params.work.items[blockIdx.y];
    const int first_key = item.x * Config::keys;
    const int queries_per_head = item.z - item.y, steps = queries_per_head * geometry.group;

    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int key_group = warp % (Config::keys / 16), dim_group = warp / (Config::keys / 16);
    const int own_key = first_key + key_group * 16 + lane / 4;  // and own_key + 8
    const int pair_column = 2 * (lane % 4);

    const auto load_queries = [&](int stage, int head, int tile) {
        const auto q = head_rows<T>(params.q, batch, head, geometry.query_tokens);
        const auto dout = head_rows<T>(params.dout, batch, head, geometry.query_tokens);
        load_tile<Config::rows, Config::head, threads>(base + Shared::q + stage * Shared::q_bytes, q,
                                                       tile * Config::rows);
        load_tile<Config::rows, Config::value, threads>(base + Shared::dout + stage * Shared::dout_bytes, dout,
                                                        tile * Config::rows);
        // Rows that do not exist get zeros: p = 1 there, but q and dout are 0, so nothing comes of it.
        const int row = static_cast<int>(threadIdx.x);
        if (row < Config::rows) {
            const int token = tile * Config::rows + row;
            const Strides& strides = params.statistics_strides;
            copy_async_8(base + Shared::statistics + stage * Shared::statistics_bytes + row * 8,
                         params.statistics + batch * strides.batch + head * strides.head + token * strides.token,
                         token < geometry.query_tokens);
        }
    };

    float dk[1][dk_cols / 8][4], dv[1][dv_cols / 8][4];
    set_zero(dk);
    set_zero(dv);

    int entry = 0, head = kv_head * geometry.group, e = item.y;
    int2 positions = make_int2(0, 0);
    if (steps > 0) {
        entry = params.work.entries[e];
        load_tile<Config::keys, Config::head, threads>(
            base + Shared::k, head_rows<T>(params.k, batch, kv_head, geometry.key_tokens), first_key);
        load_tile<Config::keys, Config::value, threads>(
            base + Shared::v, head_rows<T>(params.v, batch, kv_head, geometry.key_tokens), first_key);
        load_queries(0, head, entry >> 1);
        positions = make_int2(geometry.key_positions[own_key], geometry.key_positions[own_key + 8]);
    }
    commit_copies();

    const std::uint32_t k_lane = lane_address<Config::head, LaneOrder::straight>(base + Shared::k, key_group * 16);
    const std::uint32_t v_lane = lane_address<Config::value, LaneOrder::straight>(base + Shared::v, key_group * 16);

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = step % Config::stages;
        const int tile = entry >> 1, tile_head = head;
        const bool partial = entry & 1;
        wait_copies<0>();
        __syncthreads();  // this step's queries are there; nobody reads the last step's, nor its dS
        if (step + 1 < steps) {
            if (++e == item.z) {
                e = item.y;
                ++head;
            }
            entry = params.work.entries[e];
            load_queries((step + 1) % Config::stages, head, entry >> 1);
        }
        commit_copies();
        const std::uint32_t q_tile = base + Shared::q + stage * Shared::q_bytes;
        const std::uint32_t dout_tile = base + Shared::dout + stage * Shared::dout_bytes;
        const auto* statistics =
            reinterpret_cast<const float2*>(shared + Shared::statistics + stage * Shared::statistics_bytes);

        float p[1][q_tiles][4];
        set_zero(p);
        multiply_rows<T, Config::head / 16, Config::head, Config::head>(
            p, k_lane, lane_address<Config::head, LaneOrder::crossed>(q_tile, 0));

#pragma unroll
        for (int n = 0; n < q_tiles; ++n) {
            // (lse, delta) of this thread's two queries.
            const float4 rows = *reinterpret_cast<const float4*>(statistics + 8 * n + pair_column);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float lse = c % 2 ? rows.z : rows.x;
                if (params.rule.rewrite) {
                    const float score = score_of(params.rule, p[0][n][c]);
                    p[0][n][c] = exp2_fast(score - lse);
                } else {
                    p[0][n][c] = exp2_fast(p[0][n][c] * params.rule.factor - lse);
                }
            }
            if (partial) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int4 bounds = __ldg(geometry.row_bounds + tile * Config::rows + 8 * n + pair_column + c);
                    if (!sees(bounds, positions.x)) p[0][n][c] = 0;
                    if (!sees(bounds, positions.y)) p[0][n][c + 2] = 0;
                }
            }
        }

        // One bit of each p, by n and c.
        [[maybe_unused]] std::uint32_t kept = 0;
        [[maybe_unused]] const auto dropped = [&](float x, int n, int c) {
            if constexpr (DropsOut<Params>)
                return kept >> (4 * n + c) & 1 ? x * params.dropout.factor : 0.0f;
            else
                return x;
        };
        if constexpr (DropsOut<Params>) {
#pragma unroll 1
            for (int n = 0; n < q_tiles; ++n) {
                const int4* const bounds = geometry.row_bounds + tile * Config::rows + 8 * n + pair_column;
                const int2 query = make_int2(__ldg(&bounds[0].w), __ldg(&bounds[1].w));
                for (int r = 0; r < 2; ++r) {
                    const int key = r == 0 ? positions.x : positions.y;
                    kept |= kept_of(params.dropout, batch, tile_head, query, make_int2(key, key)) << (4 * n + 2 * r);
                }
            }
        }

        const std::uint32_t dout_lane =
            lane_address<Config::value, LaneOrder::straight>(dout_tile, 0) + dim_group * dv_cols * 2;
#pragma unroll
        for (int query = 0; query < Config::rows / 16; ++query) {
            std::uint32_t a[1][4];
            if constexpr (DropsOut<Params>) {
                float both[2][4];
#pragma unroll
                for (int c = 0; c < 8; ++c)
                    both[c / 4][c % 4] = dropped(p[0][2 * query + c / 4][c % 4], 2 * query + c / 4, c % 4);
                pack_operand<T>(a[0], both[0], both[1]);
            } else {
                pack_operand<T>(a[0], p[0][2 * query], p[0][2 * query + 1]);
            }
            multiply_patch<T>(dv, a, dout_lane + query * 16 * (Config::value * 2));
        }

        float ds[1][q_tiles][4];
        set_zero(ds);
        multiply_rows<T, Config::value / 16, Config::value, Config::value>(
            ds, v_lane, lane_address<Config::value, LaneOrder::crossed>(dout_tile, 0));
#pragma unroll
        for (int n = 0; n < q_tiles; ++n) {
            const float4 rows = *reinterpret_cast<const float4*>(statistics + 8 * n + pair_column);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                ds[0][n][c] = p[0][n][c] * (dropped(ds[0][n][c], n, c) - (c % 2 ? rows.w : rows.y));
                // The score again, from p: where p is 0, so is ds.
                if (params.rule.cap_log2 > 0 && p[0][n][c] > 0)
                    ds[0][n][c] *= slope_of(params.rule, __log2f(p[0][n][c]) + (c % 2 ? rows.z : rows.x));
            }
        }

        const std::uint32_t q_lane =
            lane_address<Config::head, LaneOrder::straight>(q_tile, 0) + dim_group * dk_cols * 2;
#pragma unroll
        for (int query = 0; query < Config::rows / 16; ++query) {
            std::uint32_t a[1][4];
            pack_operand<T>(a[0], ds[0][2 * query], ds[0][2 * query + 1]);
            if (with_dq && dim_group == 0) {
                // As [key][query]: the pairs of queries in `a` are neighbours. Chunk and row as in a tile.
                const int row = key_group * 16 + lane / 4;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int chunk = 2 * query + i / 2;
                    const std::uint32_t target = base + Shared::ds + (row + 8 * (i % 2)) * (Shared::ds_cols * 2) +
                                                 ((chunk ^ (row % 8)) << 4) + pair_column * 2;
                    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(target), "r"(a[0][i]) : "memory");
                }
            }
            multiply_patch<T>(dk, a, q_lane + query * 16 * (Config::head * 2));
        }

        if constexpr (with_dq) {
            __syncthreads();  // all of dS is there
            const int row_group = warp % Shared::dq_row_groups, column_group = warp / Shared::dq_row_groups;
            float dq[dq_m][dq_cols / 8][4];
            set_zero(dq);
            const std::uint32_t ds_lane = lane_address<Shared::ds_cols, LaneOrder::crossed>(base + Shared::ds, 0);
            const std::uint32_t k_columns = lane_address<Config::head, LaneOrder::straight>(base + Shared::k, 0);
#pragma unroll
            for (int key = 0; key < Config::keys / 16; ++key) {
                std::uint32_t a[dq_m][4];
#pragma unroll
                for (int m = 0; m < dq_m; ++m)
                    load_matrices_transposed(
                        a[m], patch_address(ds_lane, row_group * dq_m + m) + key * 16 * (Shared::ds_cols * 2));
                multiply_patch<T>(dq, a, k_columns + key * 16 * (Config::head * 2), column_group * (dq_cols / 16));
            }
            const int first_row = tile * Config::rows + row_group * 32;
            float* const rows =
                static_cast<float*>(params.dq.data) + row_index(params.dq.strides, batch, first_row, tile_head);
            // Neighbouring lanes swap halves, so that each has four neighbours of one row: the even lane of the upper
            // row, the odd lane of the lower one.
            const bool odd = lane % 2;
#pragma unroll
            for (int m = 0; m < dq_m; ++m) {
                const int row = m * 16 + lane / 4 + (odd ? 8 : 0);
#pragma unroll
                for (int n = 0; n < dq_cols / 8; ++n) {
                    float4 mine;
                    const float x = __shfl_xor_sync(~0u, odd ? dq[m][n][0] : dq[m][n][2], 1);
                    const float y = __shfl_xor_sync(~0u, odd ? dq[m][n][1] : dq[m][n][3], 1);
                    mine.x = (odd ? x : dq[m][n][0]) * params.scale;
                    mine.y = (odd ? y : dq[m][n][1]) * params.scale;
                    mine.z = (odd ? dq[m][n][2] : x) * params.scale;
                    mine.w = (odd ? dq[m][n][3] : y) * params.scale;
                    const int column = column_group * dq_cols + 8 * n + 4 * (lane % 4 / 2);
                    if (first_row + row < geometry.query_tokens)
                        add_four(rows + row * params.dq.strides.token + column, mine, params.q.dim - column,
                                 params.quads_fit);
                }
            }
        }
    }

    const auto write = [&](const Elements& result, const auto& sums, int first_column, int dim, float factor) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int key = own_key + 8 * r;
            if (key >= geometry.key_tokens) continue;
            const auto index = row_index(result.strides, batch, key, kv_head);
#pragma unroll
            for (int n = 0; n < static_cast<int>(sizeof(sums[0]) / sizeof(sums[0][0])); ++n) {
                const int column = first_column + 8 * n + pair_column;
                float2 sum = make_float2(sums[0][n][2 * r] * factor, sums[0][n][2 * r + 1] * factor);
                if (params.adds) {
                    const float2 there = load_pair(result, index + column, dim - column);
                    sum.x += there.x;
                    sum.y += there.y;
                }
                store_pair(result, index + column, sum.x, sum.y, dim - column);
            }
        }
    };
    write(params.dk, dk, dim_group * dk_cols, params.q.dim, params.scale);
    write(params.dv, dv, dim_group * dv_cols, params.v.dim, 1.0f);
}

template <DimClass dims, class Params>
void launch_backward(const Params& params, DType dtype, bool dq_apart, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(params.geometry.query_heads / params.geometry.group * params.geometry.batch),
                    static_cast<unsigned>(params.work.count));
    const bool bf16 = dtype == DType::bf16;
    const auto kernel =
        dq_apart
            ? (bf16 ? backward_kernel<__nv_bfloat16, dims, false, Params>
                    : backward_kernel<__half, dims, false, Params>)
            : (bf16 ? backward_kernel<__nv_bfloat16, dims, true, Params> : backward_kernel<__half, dims, true, Params>);
    launch(kernel, "portable backward kernel", grid, BackwardShared<dims>::threads, BackwardShared<dims>::bytes, params,
           stream);
}

}  // namespace ringlab::gpu::portable
