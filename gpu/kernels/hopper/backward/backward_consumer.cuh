#pragma once

#include "gpu/kernels/common/dropout.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/backward/backward_key_gradient.cuh"
#include "gpu/kernels/hopper/common/bulk_copy.cuh"
#include "gpu/kernels/hopper/common/wgmma.cuh"

// The two warpgroups of the backward kernel that compute.
//
// A step, in the order of issue. In brackets what is computed or copied meanwhile; dQ' is that of the step before.
//
//     head dim            rows  keys of a warpgroup  products
//     64, 192/128         128, 32     64             S, dQ' (exp2), dP (dQ' to shared memory), wait for dP, dV (dS), dK
//     128                 64          64             S, dQ' (exp2), dP (dQ' to shared memory), dV (wait for dP, dS), dK
//     256 (split dims)    64          64, both       S, dP (exp2), dV (wait for dP, dS), dQ, dK (half of dQ to shared
//                                                    memory), second half of dQ
//
// Dropout draws before S. Partial tiles set hidden p to 0 behind exp2.

namespace ringlab::gpu::hopper {

using device::exp2_fast;
using device::score_of;
using device::sees;
using device::slope_of;

/// The value for element i of an accumulator, which holds columns 2 t and 2 t + 1 of each eight. `x` has the values of
/// these two.
__device__ inline float of_element(const float2& x, int i) { return i % 2 ? x.y : x.x; }

/// The work of one computing warpgroup: dk and dv of half of the keys (or of the dims), and its part of dq.
template <class T, class Config, bool rewrite, class Params>
__device__ inline void compute(const Params& all, std::uint32_t base, const Share& share, int warpgroup) {
    const BackwardParams& params = all.params;
    using Layout = BackwardLayout<Config>;
    using Part = DqPart<Config>;
    constexpr int rows = Config::rows, keys = Config::keys, head = Config::head, value = Config::value;
    constexpr bool drops = DropsOut<Params>;
    constexpr int drawn_rows = rows < 64 ? rows : 64, drawn = rows / drawn_rows;  // rows drawn at a time, and times
    constexpr bool late_dq = !Config::split_dims;                                 // issued in the step that follows
    constexpr int s_count = rows / 2, parts = Config::split_dims ? 2 : 1;         // of the dims of dk and dv
    const int first_key = Config::split_dims ? 0 : 64 * warpgroup, half = Config::split_dims ? warpgroup : 0;
    const BackwardBarriers<Config> barriers{base + Layout::barriers};
    const Geometry& geometry = params.geometry;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    int lane;  // kept in a register: reading it anew in every step took 6 % of the step
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    const int g = lane / 4, t = lane % 4;
    const auto arrive = [&](Barrier barrier) {
        __syncwarp();
        if (elected()) barrier.arrive();
    };
    const int own_key = share.item.x * keys + first_key + warp * 16 + g;  // and own_key + 8

    float dk[head / 2 / parts], dv[value / 2 / parts];
#pragma unroll
    for (float& x : dk) x = 0;
#pragma unroll
    for (float& x : dv) x = 0;

    const int steps = share.steps;
    if (steps > 0) {
        pin(dk);  // otherwise the zeros are written after the first product, and ptxas serialises it
        pin(dv);
        const Operand<Order::rows_outer> own_k(base + Layout::k, keys, first_key);
        const Operand<Order::rows_outer> own_v(base + Layout::v, keys, first_key);
        const Operand<Order::rows_summed> all_k(base + Layout::k, keys);
        const auto dq_k = all_k.after_stretches(Part::first_dim(warpgroup) / 64, keys);
        const auto second_dq_k = all_k.after_stretches(Part::second_dim(warpgroup) / 64, keys);
        // A lane's row of dS (a key) and chunk of 8 queries for stmatrix, swizzled.
        const int ds_row = lane % 16;
        const std::uint32_t ds_place =
            base + Layout::ds + (first_key + warp * 16 + ds_row) * 128 + (((lane / 16) ^ (ds_row % 8)) << 4);
        const auto tile_of_ds = [&](int step) {
            return (Config::split_dims ? warpgroup : step & 1) * Layout::ds_bytes;
        };
        // Where this thread stores element 0 of dq^T for each 8 queries. Element 1 is one row further, elements 2 and 3
        // are 8 dims (two chunks) further.
        const std::uint32_t dq_place =
            base + (Config::split_dims ? warpgroup * Part::bytes : Layout::dq_of(warpgroup)) +
            warp / 2 * Part::box_bytes + 2 * t * 128 + (((warp % 2 * 4 + g / 4) ^ (2 * t)) << 4) + g % 4 * 4;
        const auto store_dq = [&](const auto& dq, int place) {
#pragma unroll
            for (int n = 0; n < static_cast<int>(sizeof(dq) / 16); ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    store_shared((dq_place ^ (c % 2 * 16 + c / 2 * 32)) + place + c % 2 * 128 + n * 1024,
                                 dq[4 * n + c] * params.scale);
        };
        const auto issue_dq = [&](auto& dq, const auto& dims_of_k, int step, int first_row) {
            const Operand<Order::rows_summed> ds(base + Layout::ds + tile_of_ds(step), keys);
            multiply<T, keys / 16, keys, keys>(
                dq, dims_of_k, ds.after_stretches(first_row / 64, keys).after_columns(first_row % 64), false);
        };
        const auto issue_first_dq = [&](auto& dq, int step) { issue_dq(dq, dq_k, step, Part::first_row(warpgroup)); };
        const auto issue_second_dq = [&](auto& dq, int step) {
            issue_dq(dq, second_dq_k, step, Part::second_row(warpgroup));
        };
        const auto hand_over_dq = [&](Barrier full) {
            fence_shared_for_async();
            arrive(full);
        };
        Stage<Config::q_stages> q;
        Stage<Config::dout_stages> dout;
        int last_q = 0;
        [[maybe_unused]] int2 own_keys{};
        [[maybe_unused]] int first_key_of_patch = 0;
        if constexpr (drops) {
            own_keys = make_int2(__ldg(geometry.key_positions + own_key), __ldg(geometry.key_positions + own_key + 8));
            first_key_of_patch = device::first_of_patch(own_keys, lane);
        }
        barriers.keys_full().wait(0);

        // s, dp and dq are written by products alone: ptxas serialises products whose results other instructions touch.
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const std::uint32_t q_tile = base + Layout::q + q.index() * Layout::q_bytes;
            const std::uint32_t dout_tile = base + Layout::dout + dout.index() * Layout::dout_bytes;
            const std::uint32_t row_data = base + Layout::rows + q.index() * Layout::rows_bytes;
            const std::uint32_t statistics = row_data + t * 8;

            float s[s_count], dp[s_count], dq[Part::count];
            [[maybe_unused]] float second_dq[Part::has_second ? Part::second_count : 1];
            barriers.q_full(q.index()).wait(q.parity());
            // Drawn here, while dK of the step before runs, because the other products' registers are free.
            [[maybe_unused]] std::uint32_t kept[drops ? drawn : 1];
            if constexpr (drops) {
                const device::HeadDraw draw(all.dropout, share.batch, load_shared_int(row_data + Layout::query_head));
#pragma unroll
                for (int i = 0; i < drawn; ++i)
                    kept[i] = device::draw_columns<drawn_rows>(draw, own_keys, first_key_of_patch, lane, [&](int row) {
                        return load_shared_int(row_data + Layout::bounds + (drawn_rows * i + row) * 16 + 12);
                    });
            }
            // lse, then delta. Before S: it and dP take all that shared memory gives.
            float2 of_row[rows / 8];
#pragma unroll
            for (int n = 0; n < rows / 8; ++n) of_row[n] = load_shared_float2(statistics + n * 32);
            fence_products();
            multiply<T, head / 16, keys, rows>(s, own_k, Operand<Order::rows_outer>(q_tile, rows), false);
            commit_products();
            const auto issue_dp = [&] {
                barriers.dout_full(dout.index()).wait(dout.parity());
                fence_products();
                multiply<T, value / 16, keys, rows>(dp, own_v, Operand<Order::rows_outer>(dout_tile, rows), false);
                commit_products();
            };
            if constexpr (late_dq) {  // before the first step's nothing is: a product of what lies there, not taken
                barriers.ds_full(warpgroup).wait(~step & 1);
                fence_products();
                issue_first_dq(dq, step - 1);
                if constexpr (Part::has_second) issue_second_dq(second_dq, step - 1);
                commit_products();
            } else {
                issue_dp();
            }
            wait_products<1>();  // s, and the last step's dK
            pin(s);
            if constexpr (!Config::split_dims)
                if (step > 0) arrive(barriers.q_empty(last_q));

            float p[s_count];
#pragma unroll
            for (int i = 0; i < s_count; ++i) {
                const float lse = of_element(of_row[i / 4], i);
                p[i] = exp2_fast(rewrite ? score_of(params.rule, s[i]) - lse : fmaf(s[i], params.rule.factor, -lse));
            }
            if (load_shared_int(row_data + Layout::entry) & 1) {
                const int2 positions =
                    make_int2(__ldg(geometry.key_positions + own_key), __ldg(geometry.key_positions + own_key + 8));
                // The tests give bits first, for 64 rows at a time and some eights of them in a turn of a loop: the
                // bounds of all rows do not fit into registers beside the accumulators.
                constexpr int eights = rows < 64 ? rows / 8 : 8;
#pragma unroll
                for (int first = 0; first < rows / 8; first += eights) {
                    std::uint32_t visible = 0;
#pragma unroll(Config::eights_of_mask)
                    for (int n = 0; n < eights; ++n)
#pragma unroll
                        for (int c = 0; c < 2; ++c) {
                            const int4 bounds =
                                load_shared_int4(row_data + Layout::bounds + (8 * (first + n) + 2 * t + c) * 16);
                            visible |= (sees(bounds, positions.x) ? 1u << c : 0) << 4 * n |
                                       (sees(bounds, positions.y) ? 4u << c : 0) << 4 * n;
                        }
#pragma unroll
                    for (int i = 0; i < 4 * eights; ++i)
                        if (!(visible >> i & 1)) p[4 * first + i] = 0;
                }
            }

            if constexpr (late_dq) {
                wait_products<0>();
                pin(dq);
                if constexpr (Part::has_second) pin(second_dq);
                issue_dp();
                if (step > 0) {
                    barriers.dq_empty(warpgroup).wait(step & 1);
                    store_dq(dq, 0);
                    if constexpr (Part::has_second) store_dq(second_dq, Part::bytes);
                    hand_over_dq(barriers.dq_full(warpgroup, last_q));
                }
            }
            std::uint32_t p_operand[rows / 16][4], ds_operand[rows / 16][4];
            if constexpr (!Config::early_dv) {
                wait_products<0>();
                pin(dp);
            }
#pragma unroll
            for (int i = 0; i < rows / 16; ++i)
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    p_operand[i][c] = pack<T>(p[8 * i + 2 * c], p[8 * i + 2 * c + 1]);
                    if constexpr (drops)  // dv is multiplied by the dropout factor at the end
                        p_operand[i][c] &= device::mask_of_pair(kept[i / 4], i % 4, c % 2 * 2 + c / 2);
                }
            fence_products();
            multiply<T, rows>(dv, p_operand,
                              Operand<Order::rows_summed>(dout_tile, rows).after_stretches(half * value / 128, rows),
                              true);
            commit_products();
#pragma unroll
            for (int n = 0; n < rows / 8; ++n) of_row[n] = load_shared_float2(statistics + Layout::delta + n * 32);
            if constexpr (Config::early_dv) {
                wait_products<1>();  // dP
                pin(dp);
            }
            if constexpr (Config::split_dims) arrive(barriers.scores_ended());
#pragma unroll
            for (int i = 0; i < s_count; ++i) {
                const float delta = of_element(of_row[i / 4], i);
                float x;
                if constexpr (drops) {
                    const float kept_dp =
                        device::if_kept(dp[i], kept[i / 32], i / 8 % 4, device::bit_of_column(i / 4, i % 4));
                    x = p[i] * fmaf(kept_dp, all.dropout.factor, -delta);
                } else {
                    x = p[i] * (dp[i] - delta);
                }
                // The score again, from p: where p is 0, so is ds.
                if (rewrite && params.rule.cap_log2 > 0 && p[i] > 0) {
                    const float2 lse = load_shared_float2(statistics + i / 4 * 32);
                    x *= slope_of(params.rule, __log2f(p[i]) + of_element(lse, i));
                }
                p[i] = x;
            }
#pragma unroll
            for (int i = 0; i < rows / 16; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) ds_operand[i][c] = pack<T>(p[8 * i + 2 * c], p[8 * i + 2 * c + 1]);
                store_matrices((ds_place + tile_of_ds(step) + i / 4 * keys * 128) ^ (i % 4 * 32), ds_operand[i]);
            }
            fence_shared_for_async();
            arrive(barriers.ds_full(warpgroup));

            const auto issue_dk = [&] {
                fence_products();
                multiply<T, rows>(dk, ds_operand,
                                  Operand<Order::rows_summed>(q_tile, rows).after_stretches(half * head / 128, rows),
                                  true);
                commit_products();
            };
            if constexpr (late_dq) {
                issue_dk();
                wait_products<1>();  // dV
                arrive(barriers.dout_empty(dout.index()));
            } else {
                barriers.ds_full(warpgroup).wait(step & 1);
                fence_products();
                issue_first_dq(dq, step);
                commit_products();
                issue_dk();
                wait_products<1>();  // all but dK
                pin(dq);
                barriers.scores_ended().wait(step & 1);  // the other warpgroup's too: nobody reads all dims any more
                store_dq(dq, Layout::dq_in_dout(dout.index()));
                hand_over_dq(barriers.dq_full_in_dout(warpgroup, dout.index()));
                fence_products();
                issue_second_dq(second_dq, step);
                commit_products();
                wait_products<0>();
                pin(second_dq);
                store_dq(second_dq, Layout::dq_in_q(q.index()));
                hand_over_dq(barriers.dq_full(warpgroup, q.index()));
            }
            last_q = q.index();
            q.advance();
            dout.advance();
        }
        wait_products<0>();
        pin(dk);
        pin(dv);
        if constexpr (late_dq) {
            float dq[Part::count];
            [[maybe_unused]] float second_dq[Part::has_second ? Part::second_count : 1];
            barriers.ds_full(warpgroup).wait(~steps & 1);
            fence_products();
            issue_first_dq(dq, steps - 1);
            if constexpr (Part::has_second) issue_second_dq(second_dq, steps - 1);
            commit_products();
            wait_products<0>();
            pin(dq);
            if constexpr (Part::has_second) pin(second_dq);
            barriers.dq_empty(warpgroup).wait(steps & 1);
            store_dq(dq, 0);
            if constexpr (Part::has_second) store_dq(second_dq, Part::bytes);
            hand_over_dq(barriers.dq_full(warpgroup, last_q));
        }
    }

    if constexpr (drops) {
#pragma unroll
        for (float& x : dv) x *= all.dropout.factor;
    }
    write_key_gradients<T, Config>(all, base, dk, dv, first_key + warp * 16 + g, half * head / 2, half * value / 2, t);
}

}  // namespace ringlab::gpu::hopper
