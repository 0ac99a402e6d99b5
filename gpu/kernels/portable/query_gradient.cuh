#pragma once

#include "gpu/kernels/common/dropout.cuh"
#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/portable/portable.hpp"
#include "gpu/kernels/portable/shared_layouts.hpp"

// dQ alone, for a deterministic backward pass: a thread block stays on a query tile and sums dQ in the order of the
// keys. Formulas as in backward.cuh.

namespace ringlab::gpu::portable {

using namespace device;

template <class T, DimClass dims, class Params>
__global__ void __launch_bounds__(QueryGradientConfig<dims>::warps * 32, QueryGradientConfig<dims>::blocks_per_sm)
    query_gradient_kernel(const __grid_constant__ Params params) {
    using namespace device;
    using Config = QueryGradientConfig<dims>;
    using Shared = QueryGradientShared<dims>;
    constexpr int threads = Config::warps * 32, s_tiles = Config::keys / 8;

    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    const Geometry& geometry = params.geometry;
    const int head = static_cast<int>(blockIdx.x) % geometry.query_heads;
    const int batch = static_cast<int>(blockIdx.x) / geometry.query_heads;
    const int4 item = params.query_work.items[blockIdx.y];
    const auto k = head_rows<T>(params.k, batch, head / geometry.group, geometry.key_tokens);
    const auto v = head_rows<T>(params.v, batch, head / geometry.group, geometry.key_tokens);
    const auto load_keys = [&](int stage, int tile) {
        load_tile<Config::keys, Config::head, threads>(base + Shared::k + stage * Shared::k_bytes, k,
                                                       tile * Config::keys);
        load_tile<Config::keys, Config::value, threads>(base + Shared::v + stage * Shared::v_bytes, v,
                                                        tile * Config::keys);
    };

    int entry = params.query_work.entries[item.y];
    load_tile<Config::rows, Config::head, threads>(
        base + Shared::q, head_rows<T>(params.q, batch, head, geometry.seeing_tokens), item.x * Config::rows);
    load_tile<Config::rows, Config::value, threads>(
        base + Shared::dout, head_rows<T>(params.dout, batch, head, geometry.seeing_tokens), item.x * Config::rows);
    load_keys(0, entry >> 1);
    commit_copies();

    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int own_row = item.x * Config::rows + warp * 16 + lane / 4;  // and own_row + 8
    const int pair_column = 2 * (lane % 4);
    float2 statistics[2];
    int4 bounds[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = own_row + 8 * r;
        const Strides& strides = params.statistics_strides;
        bounds[r] = geometry.row_bounds[row];
        statistics[r] = row < geometry.query_tokens
                            ? params.statistics[batch * strides.batch + head * strides.head + row * strides.token]
                            : make_float2(0, 0);
    }

    float dq[1][Config::head / 8][4];
    set_zero(dq);
    const std::uint32_t q_lane = lane_address<Config::head, LaneOrder::straight>(base + Shared::q, warp * 16);
    const std::uint32_t dout_lane = lane_address<Config::value, LaneOrder::straight>(base + Shared::dout, warp * 16);

#pragma unroll 1
    for (int e = item.y; e < item.z; ++e) {
        const int stage = (e - item.y) % 2, tile = entry >> 1;
        const bool partial = entry & 1;
        wait_copies<0>();
        __syncthreads();  // this step's keys are there; nobody reads the last step's
        if (e + 1 < item.z) {
            entry = params.query_work.entries[e + 1];
            load_keys(1 - stage, entry >> 1);
        }
        commit_copies();
        const std::uint32_t k_tile = base + Shared::k + stage * Shared::k_bytes;
        const std::uint32_t v_tile = base + Shared::v + stage * Shared::v_bytes;

        float p[1][s_tiles][4], ds[1][s_tiles][4];
        set_zero(p);
        set_zero(ds);
        multiply_rows<T, Config::head / 16, Config::head, Config::head>(
            p, q_lane, lane_address<Config::head, LaneOrder::crossed>(k_tile, 0));
        multiply_rows<T, Config::value / 16, Config::value, Config::value>(
            ds, dout_lane, lane_address<Config::value, LaneOrder::crossed>(v_tile, 0));
        if constexpr (DropsOut<Params>) {
            const int* const positions = geometry.key_positions + tile * Config::keys;
            std::uint32_t kept[(Config::keys + 63) / 64];
            draw_rows<Config::keys>(
                kept, HeadDraw(params.dropout, batch, head), make_int2(bounds[0].w, bounds[1].w), lane,
                [&](int four) { return __ldg(reinterpret_cast<const int4*>(positions) + four); },
                [&](int n) { return __ldg(reinterpret_cast<const int2*>(positions + 8 * n + pair_column)); });
#pragma unroll
            for (int n = 0; n < s_tiles; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    ds[0][n][c] =
                        params.dropout.factor * if_kept(ds[0][n][c], kept[n / 8], n / 2 % 4, bit_of_row(n, c));
        }
#pragma unroll
        for (int n = 0; n < s_tiles; ++n) {
            const int2 key = partial ? __ldg(reinterpret_cast<const int2*>(geometry.key_positions +
                                                                           tile * Config::keys + 8 * n + pair_column))
                                     : make_int2(0, 0);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float2 row = statistics[c / 2];
                float slope = 1, score = p[0][n][c] * params.rule.factor;
                if (params.rule.rewrite) {
                    score = score_of(params.rule, p[0][n][c]);
                    slope = slope_of(params.rule, score);
                }
                float x = exp2_fast(score - row.x);
                if (partial && !sees(bounds[c / 2], c % 2 ? key.y : key.x)) x = 0;
                ds[0][n][c] = x * (ds[0][n][c] - row.y) * slope;
            }
        }
        const std::uint32_t k_columns = lane_address<Config::head, LaneOrder::straight>(k_tile, 0);
#pragma unroll
        for (int i = 0; i < Config::keys / 16; ++i) {
            std::uint32_t a[1][4];
            pack_operand<T>(a[0], ds[0][2 * i], ds[0][2 * i + 1]);
            multiply_patch<T>(dq, a, k_columns + i * 16 * (Config::head * 2));
        }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = own_row + 8 * r;
        if (row >= geometry.query_tokens) continue;
        const auto index = row_index(params.dq.strides, batch, row, head);
#pragma unroll
        for (int n = 0; n < Config::head / 8; ++n) {
            const int column = 8 * n + pair_column, count = params.q.dim - column;
            const float2 old = load_pair(params.dq, index + column, count);
            store_pair(params.dq, index + column, old.x + dq[0][n][2 * r] * params.scale,
                       old.y + dq[0][n][2 * r + 1] * params.scale, count);
        }
    }
}

template <DimClass dims, class Params>
void launch_query_gradient(const Params& params, DType dtype, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(params.geometry.query_heads * params.geometry.batch),
                    static_cast<unsigned>(params.query_work.count));
    launch(dtype == DType::bf16 ? query_gradient_kernel<__nv_bfloat16, dims, Params>
                                : query_gradient_kernel<__half, dims, Params>,
           "portable query gradient kernel", grid, QueryGradientConfig<dims>::warps * 32,
           QueryGradientShared<dims>::bytes, params, stream);
}

}  // namespace ringlab::gpu::portable
