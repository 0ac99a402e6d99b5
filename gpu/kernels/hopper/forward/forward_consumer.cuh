#pragma once

#include "gpu/kernels/hopper/forward/forward_rows.cuh"
#include "gpu/kernels/hopper/forward/forward_shared.cuh"
#include "gpu/kernels/hopper/ptx/mbarrier.cuh"
#include "gpu/kernels/hopper/ptx/shared_access.cuh"
#include "gpu/kernels/hopper/ptx/wgmma.cuh"

namespace ringlab::gpu::hopper {

/// One consumer warpgroup: products and softmax of 64 query rows.
template <class T, class Config, bool rewrite, bool pairs>
struct ForwardConsumer : ForwardRows<Config> {
    using Shared = ForwardShared<Config>;
    static constexpr bool staged = stages_tests<Config, pairs>;
    using Rows = ForwardRows<Config>;
    using Rows::begin_rows, Rows::clear_output, Rows::rescale_output;
    using Rows::keys, Rows::value, Rows::launch, Rows::lane, Rows::row, Rows::row_in_tile, Rows::finish;
    using Rows::o, Rows::s, Rows::m, Rows::l;

    std::uint32_t shared;
    const Unit* units;
    int group;  // index among the consumer warpgroups
    int first_column;

    Ring<Config::q_stages> q_ring;
    Ring<Config::stages> k_ring, v_ring;
    Ring<Shared::unit_slots> slot;
    std::uint32_t p[keys / 16][4];

    // ---- turns: a warpgroup issues its products while it holds the token

    __device__ __forceinline__ void take_turn() { sync_named(1 + group, 256); }
    __device__ __forceinline__ void pass_turn() { arrive_named(1 + (group + 1) % Config::consumers, 256); }

    __device__ __forceinline__ void release(int barrier) {
        if (lane == 0) Barrier{shared + barrier}.arrive();
    }
    /// Releases a stage that both thread blocks of a pair fill.
    __device__ __forceinline__ void release_both(int barrier) {
        release(barrier);
        if (pairs && lane == 1) Barrier{shared + barrier}.arrive_at(block_of_cluster() ^ 1);
    }

    // ---- products. The compiler must know that places of tiles are the same in all threads. Otherwise it keeps
    // descriptors in registers of each thread.

    __device__ __forceinline__ void issue_scores() {
        const Operand<Order::rows_outer> q(uniform(shared + Shared::q + q_ring.place * Shared::q_bytes), Config::rows,
                                           64 * group);
        const Operand<Order::rows_outer> k(uniform(shared + Shared::k + k_ring.place * Shared::k_bytes), keys);
        pin(s);
        fence_products();
        multiply<T, Config::head / 16, Config::rows, keys>(s, q, k, false);
        commit_products();
    }
    __device__ __forceinline__ void issue_output() {
        const Operand<Order::rows_summed> v(uniform(shared + Shared::v + v_ring.place * Shared::v_bytes), keys);
        pin(o);
        pin_operands();
        fence_products();
        multiply<T, keys>(o, p, v, true);
        commit_products();
    }
    __device__ __forceinline__ void pin_operands() {
#pragma unroll
        for (int k = 0; k < keys / 16; ++k) pin(p[k]);
    }
    __device__ __forceinline__ void wait_q() {
        Barrier{shared + Shared::q_full + 8 * q_ring.place}.wait(q_ring.parity);
    }
    __device__ __forceinline__ void release_q() {
        release(Shared::q_empty + 8 * q_ring.place);
        q_ring.advance();
    }
    __device__ __forceinline__ void wait_k() {
        Barrier{shared + Shared::k_full + 8 * k_ring.place}.wait(k_ring.parity);
    }
    __device__ __forceinline__ void wait_v() {
        Barrier{shared + Shared::v_full + 8 * v_ring.place}.wait(v_ring.parity);
    }
    __device__ __forceinline__ void release_k() {
        release_both(Shared::k_empty + 8 * k_ring.place);
        k_ring.advance();
    }
    __device__ __forceinline__ void release_v() {
        release_both(Shared::v_empty + 8 * v_ring.place);
        v_ring.advance();
    }

    // ---- softmax

    __device__ __forceinline__ int4 bounds_of(const Unit& unit, int r) const {
        if constexpr (staged)
            return load_shared_int4(shared + Shared::bounds + q_ring.place * Shared::bounds_bytes +
                                    (row_in_tile + 8 * r) * 16);
        return __ldg(launch.params.geometry.row_bounds + row(unit, r));
    }
    /// Positions of the thread's two keys of the tile's eight keys n.
    __device__ __forceinline__ int2 positions_of(int key_tile, int n) const {
        if constexpr (staged)
            return load_shared_int2(shared + Shared::positions + k_ring.place * Shared::positions_bytes +
                                    (first_column + 8 * n) * 4);
        const int* first = launch.params.geometry.key_positions + key_tile * keys + first_column;
        return __ldg(reinterpret_cast<const int2*>(first) + 4 * n);
    }

    /// Sets scores of a partial tile that the mask hides to -inf. Positions that were staged lie beside the tile's K.
    __device__ __forceinline__ void hide(const Unit& unit, int key_tile) {
        int4 bounds[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) bounds[r] = bounds_of(unit, r);
#pragma unroll
        for (int n = 0; n < keys / 8; ++n) {
            const int2 key = positions_of(key_tile, n);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                if (!device::sees(bounds[r], key.x)) s[4 * n + 2 * r] = device::minus_infinity();
                if (!device::sees(bounds[r], key.y)) s[4 * n + 2 * r + 1] = device::minus_infinity();
            }
        }
        if constexpr (staged) {
            __syncwarp();
            release_k();
        }
    }

    template <bool partial>
    __device__ __forceinline__ void softmax(const Unit& unit, int key_tile) {
        const auto& rule = launch.params.rule;
        if constexpr (rewrite) {
#pragma unroll
            for (int i = 0; i < keys / 2; ++i) s[i] = device::score_of(rule, s[i]);
        }
        if constexpr (partial) hide(unit, key_tile);
        this->template take_softmax<partial>(rewrite ? 1.0f : rule.factor);
    }
    __device__ __forceinline__ void pack_scores() {
#pragma unroll
        for (int k = 0; k < keys / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) p[k][i] = device::pack<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }

    // ---- tiles

    /// The key tile of an entry; needed for partial tiles whose tests are not staged.
    __device__ __forceinline__ int key_tile(int entry) const {
        return staged ? 0 : __ldg(launch.params.work.entries + entry) >> 1;
    }
    /// Releases K after a tile's scores, unless hide() does that later.
    template <bool partial>
    __device__ __forceinline__ void release_k_of() {
        if constexpr (!partial || !staged) release_k();
    }

    /// The first key tile of a work tile, when there is no other work tile whose product could run at the same time.
    __device__ __forceinline__ void first_tile(const Unit& unit) {
        const int tile = key_tile(unit.begin);
        wait_q();
        wait_k();
        issue_scores();
        wait_products<0>();
        pin(s);
        if constexpr (!staged) release_k();
        begin_rows();
        clear_output();
        if (unit.begin < unit.partial_end) {
            softmax<true>(unit, tile);
        } else {
            if constexpr (staged) release_k();
            softmax<false>(unit, tile);
        }
        pack_scores();
    }

    /// Issues the scores of a tile and the output of the one before, and waits for the scores.
    template <bool partial>
    __device__ __forceinline__ void multiply_both() {
        wait_k();
        take_turn();
        issue_scores();
        wait_v();
        issue_output();
        pass_turn();
        wait_products<1>();
        pin(s);
        release_k_of<partial>();
    }

    /// A further key tile: its scores, together with the output of the tile before.
    template <bool partial>
    __device__ __forceinline__ void next_tile(const Unit& unit, int entry) {
        const int tile = partial ? key_tile(entry) : 0;
        multiply_both<partial>();
        softmax<partial>(unit, tile);
        pin(s);
        wait_products<0>();
        pin(o);
        release_v();
        rescale_output();
        pack_scores();
    }

    /// The first key tile of the next work tile: its scores, together with the last output of the work tile before. The
    /// work tile before is then stored while the other warpgroups multiply.
    template <bool partial>
    __device__ __forceinline__ void first_tile_after(const Unit& before, const Unit& unit) {
        const int tile = partial ? key_tile(unit.begin) : 0;
        wait_q();
        multiply_both<partial>();
        const float last_m[2] = {m[0], m[1]}, last_l[2] = {l[0], l[1]};
        begin_rows();
        softmax<partial>(unit, tile);
        pin(s);
        wait_products<0>();
        pin(o);
        release_v();
        pack_scores();
        const float first_m[2] = {m[0], m[1]}, first_l[2] = {l[0], l[1]};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[r] = last_m[r];
            l[r] = last_l[r];
        }
        finish(before);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[r] = first_m[r];
            l[r] = first_l[r];
        }
        clear_output();
    }

    __device__ __forceinline__ void last_output() {
        wait_v();
        issue_output();
        wait_products<0>();
        pin(o);
        release_v();
    }

    __device__ __forceinline__ Unit next_unit() {
        Barrier{shared + Shared::unit_full + 8 * slot.place}.wait(slot.parity);
        const Unit unit = units[slot.place];
        __syncwarp();
        release(Shared::unit_empty + 8 * slot.place);
        slot.advance();
        return unit;
    }

    __device__ __forceinline__ void run() {
        if (group == Config::consumers - 1) pass_turn();
        Unit unit = next_unit();
        while (unit.tile >= 0) {
            if (unit.begin == unit.end) {
                begin_rows();
                clear_output();
                finish(unit);
                unit = next_unit();
                continue;
            }
            first_tile(unit);
            int entry = unit.begin + 1;
            while (true) {
#pragma unroll 1
                for (; entry < unit.partial_end; ++entry) next_tile<true>(unit, entry);
#pragma unroll 1
                for (; entry < unit.end; ++entry) next_tile<false>(unit, entry);
                if (!unit.last) {
                    unit = next_unit();
                    entry = unit.begin;
                    continue;
                }
                release_q();
                const Unit next = next_unit();
                if (next.begin == next.end) {
                    last_output();
                    finish(unit);
                    unit = next;
                    break;
                }
                next.begin < next.partial_end ? first_tile_after<true>(unit, next)
                                              : first_tile_after<false>(unit, next);
                unit = next;
                entry = unit.begin + 1;
            }
        }
    }
};

}  // namespace ringlab::gpu::hopper
