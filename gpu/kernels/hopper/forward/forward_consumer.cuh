#pragma once

#include "gpu/kernels/common/dropout.cuh"
#include "gpu/kernels/hopper/common/mbarrier.cuh"
#include "gpu/kernels/hopper/common/shared_access.cuh"
#include "gpu/kernels/hopper/common/wgmma.cuh"
#include "gpu/kernels/hopper/forward/forward_rows.cuh"
#include "gpu/kernels/hopper/forward/forward_shared.cuh"

namespace ringlab::gpu::hopper {

/// One consumer warpgroup: products and softmax of 64 query rows.
template <class T, class Config, bool rewrite, class Launch>
struct ForwardConsumer : ForwardRows<Config> {
    using Shared = ForwardShared<Config>;
    static constexpr bool staged = stages_tests<Config>, drops = DropsOut<Launch>;
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
    std::uint32_t kept[drops ? (keys + 63) / 64 : 1];  // of a tile: see draw_rows()

    // ---- turns: a warpgroup issues its products while it holds the token

    __device__ __forceinline__ void take_turn() { sync_named(1 + group, 256); }
    __device__ __forceinline__ void pass_turn() { arrive_named(1 + (group + 1) % Config::consumers, 256); }

    __device__ __forceinline__ void release(int barrier) {
        if (lane == 0) Barrier{shared + barrier}.arrive();
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
        release(Shared::k_empty + 8 * k_ring.place);
        k_ring.advance();
    }
    __device__ __forceinline__ void release_v() {
        release(Shared::v_empty + 8 * v_ring.place);
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

    /// Sets scores of a partial tile that the mask hides to -inf.
    __device__ __forceinline__ void hide(const Unit& unit, int entry) {
        const int key_tile = staged ? 0 : __ldg(launch.params.work.entries + entry) >> 1;
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
    }

    /// From products to scores: rewrites them, hides what the mask hides, and releases the tile's K, beside which the
    /// positions of its keys lie.
    __device__ __forceinline__ void finish_scores(const Unit& unit, int entry, bool is_partial) {
        if constexpr (rewrite) {
#pragma unroll
            for (int i = 0; i < keys / 2; ++i) s[i] = device::score_of(launch.params.rule, s[i]);
        }
        if (is_partial) {
            hide(unit, entry);
            if constexpr (staged) __syncwarp();
        }
        release_k();
    }

    __device__ __forceinline__ float factor() const { return rewrite ? 1.0f : launch.params.rule.factor; }

    /// p from the scores, relative to maxima that are brought up to date.
    __device__ __forceinline__ void softmax() {
        this->take_softmax(factor());
#pragma unroll
        for (int k = 0; k < keys / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) p[k][i] = device::pack<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }

    /// The same, relative to the maxima of earlier tiles. Then O need not be rescaled. Returns false if some p of the
    /// warp's rows may be above 2^15, which fp16 can hold, or if there are no maxima yet; p is then to be computed
    /// again by softmax().
    __device__ __forceinline__ bool softmax_by_old_maxima() {
        constexpr float most = 32768;
        float sums[2][2];
#pragma unroll
        for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float left = device::exp2_fast(s[4 * n + 2 * r] * factor() - m[r]);
                const float right = device::exp2_fast(s[4 * n + 2 * r + 1] * factor() - m[r]);
                sums[r][0] = n == 0 ? left : sums[r][0] + left;
                sums[r][1] = n == 0 ? right : sums[r][1] + right;
                p[n / 2][n % 2 * 2 + r] = device::pack<T>(left, right);
            }
        const float sum[2] = {sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]};
        // Not a number, from -inf - -inf or an input, fails both comparisons.
        if (!__all_sync(~0u, sum[0] <= most && sum[1] <= most)) return false;
        l[0] += sum[0];
        l[1] += sum[1];
        return true;
    }

    // ---- dropout

    __device__ __forceinline__ const DropoutParams& dropout() const {
        return static_cast<const Launch&>(launch).dropout;
    }

    /// Draws which pairs of a tile are kept, while the products of this warpgroup run.
    __device__ __forceinline__ void draw(const Unit& unit, int entry) {
        if constexpr (drops) {
            const int key_tile = staged ? 0 : __ldg(launch.params.work.entries + entry) >> 1;
            const auto four_keys = [&](int i) {
                if constexpr (staged)
                    return load_shared_int4(shared + Shared::positions + k_ring.place * Shared::positions_bytes +
                                            i * 16);
                else
                    return __ldg(reinterpret_cast<const int4*>(launch.params.geometry.key_positions + key_tile * keys) +
                                 i);
            };
            device::draw_rows<keys>(kept, {dropout(), unit.batch, unit.head},
                                    make_int2(bounds_of(unit, 0).w, bounds_of(unit, 1).w), lane, four_keys,
                                    [&](int n) { return positions_of(key_tile, n); });
        }
    }
    /// Sets p of dropped pairs to 0. Those that are kept are multiplied by the dropout factor as part of O.
    __device__ __forceinline__ void drop() {
        if constexpr (drops) {
#pragma unroll
            for (int k = 0; k < keys / 16; ++k)
#pragma unroll
                for (int i = 0; i < 4; ++i) p[k][i] &= device::mask_of_pair(kept[k / 4], k % 4, i);
        }
    }
    __device__ __forceinline__ void scale_output() {
        if constexpr (drops) {
#pragma unroll
            for (int i = 0; i < value / 2; ++i) o[i] *= dropout().factor;
        }
    }

    // ---- tiles

    __device__ __forceinline__ void await_both() {
        wait_products<0>();
        pin(s);
        pin(o);
    }

    /// A further key tile: its scores, together with the output of the tile before. Returns whether p is computed, too.
    /// If not, softmax() has to do it, always in a partial tile.
    template <bool is_partial>
    __device__ __forceinline__ bool next_tile(const Unit& unit, int entry) {
        wait_k();
        take_turn();
        issue_scores();
        wait_v();
        issue_output();
        pass_turn();
        draw(unit, entry);
        await_both();
        release_v();
        finish_scores(unit, entry, is_partial);
        if (is_partial || !softmax_by_old_maxima()) return false;
        drop();
        return true;
    }

    /// The first key tile of a work tile: its scores, together with the last output of the work tile before. Where one
    /// of the two does not exist, it is computed from whatever lies in the buffers and not used: products that are not
    /// always issued would keep their results in registers during the main loop.
    __device__ __forceinline__ void first_tile(const Unit& unit, bool has_tiles, const Unit& before, bool has_output,
                                               bool has_boxes) {
        if (has_boxes) {
            release(Shared::boxes_free);
            q_ring.advance();
        } else if (has_output) {
            release_q();
        }
        if (has_output) wait_v();
        if (has_tiles) {
            wait_q();
            wait_k();
        }
        this->load_rest_of_carry(before, has_boxes);
        take_turn();
        issue_scores();
        issue_output();
        pass_turn();
        if (has_tiles) draw(unit, unit.begin);
        await_both();
        if (has_output) release_v();
        if (has_tiles) finish_scores(unit, unit.begin, unit.begin < unit.partial_end);
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
        Unit before{}, unit = next_unit();
        bool has_before = false;  // a work tile is still to be stored
        bool has_output = false;  // and its last output to be computed
        const bool boxes = Shared::boxes > 0 && !launch.params.first;
        std::uint32_t boxes_parity = 0;
        while (true) {
            const bool has_tiles = unit.begin < unit.end;
            first_tile(unit, has_tiles, before, has_output, boxes && has_before);
            const float last_m[2] = {m[0], m[1]}, last_l[2] = {l[0], l[1]};
            begin_rows();
            if (has_tiles) {
                softmax();
                drop();
            }
            // The work tile before is stored while the other warpgroups multiply.
            if (has_before) {
                const float first_m[2] = {m[0], m[1]}, first_l[2] = {l[0], l[1]};
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    m[r] = last_m[r];
                    l[r] = last_l[r];
                }
                if (!has_output) clear_output();
                scale_output();
                const int q_place = q_ring.place ^ 1;  // of the work tile before, if it has boxes
                if (boxes) {
                    Barrier{shared + Shared::boxes_full}.wait(boxes_parity);
                    boxes_parity ^= 1;
                }
                finish(before, shared, q_place);
                if (boxes) {
                    __syncwarp();
                    release(Shared::q_empty + 8 * q_place);
                }
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    m[r] = first_m[r];
                    l[r] = first_l[r];
                }
            }
            if (unit.tile < 0) return;
            clear_output();
            for (int entry = unit.begin + 1; has_tiles;) {
#pragma unroll 1
                while (entry < unit.end) {
                    if (entry < unit.partial_end) {
                        next_tile<true>(unit, entry++);
                    } else {
                        // Most tiles go through this loop alone. Its instructions are one stretch with a single jump.
                        bool has_p;
#pragma unroll 1
                        do {
                            has_p = next_tile<false>(unit, entry++);
                        } while (has_p && entry < unit.end);
                        if (has_p) break;
                    }
                    softmax();
                    rescale_output();
                    drop();
                }
                if (unit.last) break;
                unit = next_unit();
                entry = unit.begin;
            }
            before = unit;
            has_before = true;
            has_output = has_tiles;
            unit = next_unit();
        }
    }
};

}  // namespace ringlab::gpu::hopper
