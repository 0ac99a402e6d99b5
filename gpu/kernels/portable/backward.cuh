#pragma once

#include "gpu/kernels/common/dropout.cuh"
#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/portable/barrier.cuh"
#include "gpu/kernels/portable/dq_addition.cuh"
#include "gpu/kernels/portable/portable.hpp"
#include "gpu/kernels/portable/shared_layouts.hpp"

// Backward pass of one attend (FlashAttention, arXiv 2205.14135, appendix B; formulas in log2 units):
//     p = exp2(s - lse)    ds = p * (do.v - delta)    dv += p^T do    dk += ds^T q * scale    dq += ds k * scale
//
// A thread block stays on a key tile and goes over the query tiles of all query heads that read its kv head. So it sums
// dK and dV in registers and writes them once. It computes S^T = K Q^T and dP^T = V dO^T, because their rounded results
// are the left operands of dV and dK as they lie in registers. Warps that share keys have different query rows of S and
// dP but need all rows of P and dS for their dims of dK and dV: they swap them through shared memory. dQ, a sum over
// keys, needs dS from all warps, and each warp adds its part of dQ to global memory.

namespace ringlab::gpu::portable {

using namespace device;

template <class T, DimClass dims, bool with_dq, class Params>
__global__ void __launch_bounds__(BackwardShared<dims>::threads, BackwardConfig<dims>::blocks_per_sm)
    backward_kernel(const __grid_constant__ Params params) {
    using namespace device;
    using Config = BackwardConfig<dims>;
    using Shared = BackwardShared<dims>;
    constexpr int threads = Shared::threads, sharing = Config::sharing;
    constexpr int m_tiles = 2, n_tiles = Config::warp_rows / 8, patches = Config::warp_rows / 16;
    constexpr int part_rows = Config::warp_rows * sharing, parts = Config::rows / part_rows;
    constexpr int dk_cols = Config::head / sharing, dv_cols = Config::value / sharing;

    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    const Geometry& geometry = params.geometry;
    const int kv_heads = geometry.query_heads / geometry.group;
    const int kv_head = static_cast<int>(blockIdx.x) % kv_heads, batch = static_cast<int>(blockIdx.x) / kv_heads;
    const int4 item = params.work.items[blockIdx.y];
    const int first_key = item.x * Config::keys;
    const int queries_per_head = item.z - item.y, steps = queries_per_head * geometry.group;

    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int key_group = warp % (Config::keys / 32), share = warp / (Config::keys / 32);
    const int own_key = first_key + key_group * 32 + lane / 4;  // and own_key + 8, 16, 24
    const int pair_column = 2 * (lane % 4);

    // Phase i of each barrier belongs to step i. `stored`: P and dS are there. `done`: nobody reads the step's tiles
    // any more, and the next ones are there.
    const Barrier stored{base + Shared::barriers}, done{stored.address + 8};
    if (threadIdx.x == 0) {
        stored.init(Shared::warps);
        done.init(Shared::warps);
    }

    const auto load_queries = [&](int stage, int head, int tile) {
        load_tile<Config::rows, Config::head, threads>(base + Shared::q + stage * Shared::q_bytes,
                                                       head_rows<T>(params.q, batch, head, geometry.seeing_tokens),
                                                       tile * Config::rows);
        load_tile<Config::rows, Config::value, threads>(base + Shared::dout + stage * Shared::dout_bytes,
                                                        head_rows<T>(params.dout, batch, head, geometry.seeing_tokens),
                                                        tile * Config::rows);
    };
    const auto load_statistics = [&](int head, int tile) {
        // Rows that do not exist get zeros: p = 1 there, but q and dout are 0, so nothing comes of it.
        const int row = static_cast<int>(threadIdx.x);
        if (row < Config::rows) {
            const int token = tile * Config::rows + row;
            const Strides& strides = params.statistics_strides;
            copy_async_8(base + Shared::statistics + row * 8,
                         params.statistics + batch * strides.batch + head * strides.head + token * strides.token,
                         token < geometry.query_tokens);
        }
    };

    float dk[m_tiles][dk_cols / 8][4], dv[m_tiles][dv_cols / 8][4];
    set_zero(dk);
    set_zero(dv);

    int entry = 0, head = kv_head * geometry.group, e = item.y;
    if (steps > 0) {
        entry = params.work.entries[e];
        load_tile<Config::keys, Config::head, threads>(
            base + Shared::k, head_rows<T>(params.k, batch, kv_head, geometry.key_tokens), first_key);
        load_tile<Config::keys, Config::value, threads>(
            base + Shared::v, head_rows<T>(params.v, batch, kv_head, geometry.key_tokens), first_key);
        load_queries(0, head, entry >> 1);
        load_statistics(head, entry >> 1);
    }
    wait_copies<0>();
    __syncthreads();

    const std::uint32_t k_lane = lane_address<Config::head, LaneOrder::straight>(base + Shared::k, key_group * 32);
    const std::uint32_t v_lane = lane_address<Config::value, LaneOrder::straight>(base + Shared::v, key_group * 32);
    // P and dS as [key][query].
    const std::uint32_t p_lane = lane_address<Shared::ds_cols, LaneOrder::straight>(base + Shared::p, key_group * 32);
    const std::uint32_t ds_lane = lane_address<Shared::ds_cols, LaneOrder::straight>(base + Shared::ds, key_group * 32);

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const int stage = step % Config::stages;
        const int tile = entry >> 1, tile_head = head;
        const bool partial = entry & 1;
        const auto load_next = [&] {
            if (step + 1 == steps) return;
            if (++e == item.z) {
                e = item.y;
                ++head;
            }
            entry = params.work.entries[e];
            load_queries((step + 1) % Config::stages, head, entry >> 1);
            if constexpr (Config::stages == 1) load_statistics(head, entry >> 1);
        };
        if (step > 0) done.wait(step - 1);
        if constexpr (Config::stages > 1) load_next();
        const std::uint32_t q_tile = base + Shared::q + stage * Shared::q_bytes;
        const std::uint32_t dout_tile = base + Shared::dout + stage * Shared::dout_bytes;
        // Right operands of dV and dK, from this warp's first dims on.
        const std::uint32_t dout_lane =
            patch_address(lane_address<Config::value, LaneOrder::straight>(dout_tile, 0), share);
        const std::uint32_t q_lane = patch_address(lane_address<Config::head, LaneOrder::straight>(q_tile, 0), share);

#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
            const int first_row = part * part_rows + share * Config::warp_rows;  // of the tile
            const auto* statistics =
                reinterpret_cast<const float2*>(shared + Shared::statistics) + first_row + pair_column;

            float p[m_tiles][n_tiles][4], ds[m_tiles][n_tiles][4];
            set_zero(p);
            set_zero(ds);
            multiply_rows<T, Config::head / 16, Config::head, Config::head>(
                p, k_lane, lane_address<Config::head, LaneOrder::crossed>(q_tile, first_row));
            if (params.rule.rewrite) {
#pragma unroll
                for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                        for (int c = 0; c < 4; ++c) p[m][n][c] = score_of(params.rule, p[m][n][c]);
            }
            // The exponentials of a few tiles after each patch of the product, so that both run at the same time.
            multiply_rows<T, Config::value / 16, Config::value, Config::value>(
                ds, v_lane, lane_address<Config::value, LaneOrder::crossed>(dout_tile, first_row), [&](int patch) {
                    constexpr int depth = Config::value / 16;
#pragma unroll
                    for (int n = patch * n_tiles / depth; n < (patch + 1) * n_tiles / depth; ++n) {
                        // (lse, delta) of this thread's two queries.
                        const float4 rows = *reinterpret_cast<const float4*>(statistics + 8 * n);
#pragma unroll
                        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                            for (int c = 0; c < 4; ++c)
                                p[m][n][c] = exp2_fast(p[m][n][c] * params.rule.factor - (c % 2 ? rows.z : rows.x));
                    }
                });

            const int4* const bounds = geometry.row_bounds + tile * Config::rows + first_row + pair_column;
            if (partial) {
                int positions[2 * m_tiles];
#pragma unroll
                for (int i = 0; i < 2 * m_tiles; ++i) positions[i] = __ldg(geometry.key_positions + own_key + 8 * i);
#pragma unroll
                for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const int4 row = __ldg(bounds + 8 * n + c);
#pragma unroll
                        for (int i = 0; i < 2 * m_tiles; ++i)
                            if (!sees(row, positions[i])) p[i / 2][n][2 * (i % 2) + c] = 0;
                    }
            }

            std::uint32_t p_operand[patches][m_tiles][4], ds_operand[patches][m_tiles][4];
            const auto pack_all = [&](auto& operand, const auto& x) {
#pragma unroll
                for (int i = 0; i < patches; ++i)
#pragma unroll
                    for (int m = 0; m < m_tiles; ++m) pack_operand<T>(operand[i][m], x[m][2 * i], x[m][2 * i + 1]);
            };
            if constexpr (DropsOut<Params>) {
                const HeadDraw draw(params.dropout, batch, tile_head);
                const int4* const rows = geometry.row_bounds + tile * Config::rows + first_row;
                float dropped[m_tiles][n_tiles][4];
#pragma unroll
                for (int m = 0; m < m_tiles; ++m) {
                    const int* const positions = geometry.key_positions + own_key + 16 * m;
                    const int2 key = make_int2(__ldg(positions), __ldg(positions + 8));
                    const std::uint32_t kept = draw_columns<Config::warp_rows>(
                        draw, key, first_of_patch(key, lane), lane, [&](int row) { return __ldg(&rows[row].w); });
#pragma unroll
                    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                        for (int c = 0; c < 4; ++c) {
                            const int bit = bit_of_column(n, c);
                            dropped[m][n][c] = params.dropout.factor * if_kept(p[m][n][c], kept, n / 2, bit);
                            ds[m][n][c] = params.dropout.factor * if_kept(ds[m][n][c], kept, n / 2, bit);
                        }
                }
                pack_all(p_operand, dropped);
            } else {
                pack_all(p_operand, p);
            }
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                const float4 rows = *reinterpret_cast<const float4*>(statistics + 8 * n);
#pragma unroll
                for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                    for (int c = 0; c < 4; ++c) ds[m][n][c] = p[m][n][c] * (ds[m][n][c] - (c % 2 ? rows.w : rows.y));
            }
            if (params.rule.cap_log2 > 0) {
#pragma unroll
                for (int n = 0; n < n_tiles; ++n) {
                    const float4 rows = *reinterpret_cast<const float4*>(statistics + 8 * n);
#pragma unroll
                    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                        for (int c = 0; c < 4; ++c)
                            // The score again, from p: where p is 0, so is ds.
                            if (p[m][n][c] > 0)
                                ds[m][n][c] *= slope_of(params.rule, __log2f(p[m][n][c]) + (c % 2 ? rows.z : rows.x));
                }
            }
            pack_all(ds_operand, ds);

            const auto store_all = [&](std::uint32_t target, const auto& operand) {
                // The pairs of queries in an operand are neighbours. Chunk and row as in a tile.
                const int row = key_group * 32 + lane / 4, first_chunk = first_row / 8;
#pragma unroll
                for (int i = 0; i < patches; ++i)
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int chunk = first_chunk + 2 * i + j;
                        const std::uint32_t place = target + row * (Shared::ds_cols * 2) + chunk / 8 * 128 +
                                                    ((chunk % 8 ^ row % 8) << 4) + pair_column * 2;
#pragma unroll
                        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                            for (int r = 0; r < 2; ++r)
                                asm volatile(
                                    "st.shared.b32 [%0], %1;\n" ::"r"(place + (16 * m + 8 * r) * (Shared::ds_cols * 2)),
                                    "r"(operand[i][m][2 * j + r])
                                    : "memory");
                    }
            };
            if constexpr (with_dq || sharing > 1) store_all(base + Shared::ds, ds_operand);
            if constexpr (sharing > 1) store_all(base + Shared::p, p_operand);
            if (part + 1 == parts) stored.arrive();
#pragma unroll
            for (int i = 0; i < patches; ++i)
                multiply_patch<T, sharing>(dv, p_operand[i], dout_lane + (first_row + i * 16) * (Config::value * 2));
#pragma unroll
            for (int i = 0; i < patches; ++i)
                multiply_patch<T, sharing>(dk, ds_operand[i], q_lane + (first_row + i * 16) * (Config::head * 2));
        }

        stored.wait(step);
        if constexpr (Config::stages > 1)
            if (step + 1 < steps) load_statistics(head, entry >> 1);  // nobody reads the last ones any more
        if constexpr (sharing > 1) {
            // The rows of the warps that share this one's keys.
#pragma unroll
            for (int other = 1; other < sharing; ++other) {
#pragma unroll
                for (int i = 0; i < patches * parts; ++i) {
                    const int patch =
                        i / patches * (part_rows / 16) + (share + other) % sharing * patches + i % patches;
                    std::uint32_t a[m_tiles][4];
                    const auto load = [&](std::uint32_t lane_of) {
#pragma unroll
                        for (int m = 0; m < m_tiles; ++m)
                            load_matrices(a[m], patch_address(lane_of, patch) + m * 16 * (Shared::ds_cols * 2));
                    };
                    load(p_lane);
                    multiply_patch<T, sharing>(dv, a, dout_lane + patch * 16 * (Config::value * 2));
                    load(ds_lane);
                    multiply_patch<T, sharing>(dk, a, q_lane + patch * 16 * (Config::head * 2));
                }
            }
        }
        if constexpr (Config::stages == 1) {
            __syncthreads();  // nobody reads the queries any more
            load_next();
        }
        const auto step_is_done = [&] {
            wait_copies<0>();
            done.arrive();
        };
        if constexpr (!with_dq) step_is_done();

        if constexpr (with_dq) {
            constexpr int dq_m = 2, dq_tiles = Shared::dq_cols / 8;
            const int row_group = warp % Shared::dq_row_groups, column_group = warp / Shared::dq_row_groups;
            const int first_row = tile * Config::rows + row_group * 32 + lane / 4;
            const int first_patch = column_group * Shared::dq_first_patches;
            const std::uint32_t ds_rows = patch_address(
                lane_address<Shared::ds_cols, LaneOrder::crossed>(base + Shared::ds, 0), row_group * dq_m);
            const std::uint32_t k_columns =
                patch_address(lane_address<Config::head, LaneOrder::straight>(base + Shared::k, 0), first_patch);
            float dq[dq_m][dq_tiles][4];
            set_zero(dq);
#pragma unroll
            for (int key = 0; key < Config::keys / 16; ++key) {
                std::uint32_t a[dq_m][4];
#pragma unroll
                for (int m = 0; m < dq_m; ++m)
                    load_matrices_transposed(a[m], patch_address(ds_rows, m) + key * 16 * (Shared::ds_cols * 2));
                multiply_patch<T, Shared::dq_stride>(dq, a, k_columns + key * 16 * (Config::head * 2));
            }
            step_is_done();

            float* const rows =
                static_cast<float*>(params.dq.data) + row_index(params.dq.strides, batch, first_row, tile_head);
            const DqTarget target{rows, params.dq.strides.token, params.q.dim, geometry.query_tokens - first_row};
            if (adds_quads && params.quads_fit && (tile + 1) * Config::rows <= geometry.query_tokens)
                add_quads<Shared::dq_stride>(target, dq, first_patch, params.scale);
            else
                add_each<Shared::dq_stride>(target, dq, first_patch, params.scale);
        }
    }

    const auto write = [&](const Elements& result, const auto& sums, int dim, float factor) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const int key = own_key + 8 * i;
            if (key >= geometry.key_tokens) continue;
            const auto index = row_index(result.strides, batch, key, kv_head);
#pragma unroll
            for (int n = 0; n < static_cast<int>(sizeof(sums[0]) / sizeof(sums[0][0])); ++n) {
                const int column = 16 * (share + n / 2 * sharing) + n % 2 * 8 + pair_column;
                const auto& four = sums[i / 2][n];
                float2 sum = make_float2(four[2 * (i % 2)] * factor, four[2 * (i % 2) + 1] * factor);
                if (params.adds) {
                    const float2 there = load_pair(result, index + column, dim - column);
                    sum.x += there.x;
                    sum.y += there.y;
                }
                store_pair(result, index + column, sum.x, sum.y, dim - column);
            }
        }
    };
    write(params.dk, dk, params.q.dim, params.scale);
    write(params.dv, dv, params.v.dim, 1.0f);
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
