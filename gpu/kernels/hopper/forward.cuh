#pragma once

#include "gpu/kernels/hopper/bulk_copy.cuh"
#include "gpu/kernels/hopper/config.hpp"
#include "gpu/kernels/hopper/forward.hpp"
#include "gpu/kernels/hopper/joined.cuh"
#include "gpu/kernels/hopper/unit_order.cuh"
#include "gpu/kernels/hopper/wgmma.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/tile.cuh"

#include <algorithm>

// Forward pass of one attend on sm_90a, the work of gpu/kernels/forward.cuh in the manner of FlashAttention-3 (Shah et
// al. 2024, arXiv 2407.08608): one thread of the producer warpgroup fetches tiles by bulk copies; consumer warpgroups
// of 64 query rows multiply and take softmax, one warpgroup's softmax under the products of the other, and within a
// warpgroup the softmax of a tile under the product of P and V of the tile before.
//
// A block goes from unit to unit, a unit being a query tile of one head, in sections of heads whose K and V L2 holds,
// longest tile first, by a counter in global memory: whichever block is free takes the next. Partial key tiles come
// first in a unit; the loop over full ones has no test of elements.
//
// Where several blocks are one launch, a unit has a part for each of them, which the consumers are told one by one; O,
// m and l stay in registers from part to part. The producer waits for a block before it loads from it first.
//
// Two blocks may make a pair (a cluster): each does one of two query heads that read the same kv head, at the same
// query tile. They need the same K and V at the same time, of which each fetches half for both: a tile comes out of L2
// once. The first block of a pair asks the counter and tells the second.
//
// Every unit starts from nothing, and takes in the carry at its end: that is one merge, at the time of the store, and
// its rows are prefetched into L2 meanwhile.

namespace ringlab::gpu::hopper {

/// Places of a ring of buffers, with the parity of the current round.
template <int count>
struct Ring {
    int place = 0;
    std::uint32_t parity = 0;

    __device__ __forceinline__ void advance() {
        if (++place == count) {
            place = 0;
            parity ^= 1;
        }
    }
};

template <class Config>
struct ForwardShared {
    static constexpr int q_bytes = Config::rows * Config::head * 2;
    static constexpr int k_bytes = Config::keys * Config::head * 2, v_bytes = Config::keys * Config::value * 2;
    static constexpr int unit_slots = 2;

    // Offsets. Tiles start at multiples of 1024.
    static constexpr int q = 0, k = q + Config::q_stages * q_bytes, v = k + Config::stages * k_bytes;
    static constexpr int units = v + Config::stages * v_bytes;  // Unit
    static constexpr int barriers = units + unit_slots * 32;
    static constexpr int k_full = barriers, k_empty = k_full + 8 * Config::stages;
    static constexpr int v_full = k_empty + 8 * Config::stages, v_empty = v_full + 8 * Config::stages;
    static constexpr int unit_full = v_empty + 8 * Config::stages, unit_empty = unit_full + 8 * unit_slots;
    static constexpr int q_full = unit_empty + 8 * unit_slots, q_empty = q_full + 8 * Config::q_stages;
    static constexpr int next = q_empty + 8 * Config::q_stages;  // what the first block of a pair tells the second
    static constexpr int next_full = next + 8, next_empty = next_full + 8, bytes = next_empty + 8;
};

/// What the producer tells the consumers: a unit, or a part of one.
struct __align__(32) Unit {
    int tile;                     // of queries; -1: no more units
    int begin, partial_end, end;  // of the list's entries
    int head, batch;
    bool last;  // part of its unit
};

/// What a block does at a time: items of the list, one for each part.
struct Work {
    int item, end;  // -1: nothing more
    int4 first;     // the first item
    int head, batch;
};

template <class Config, bool pairs>
struct ForwardProducer {
    using Shared = ForwardShared<Config>;
    static constexpr int blocks = pairs ? 2 : 1;
    const ForwardLaunch& launch;
    std::uint32_t shared;
    Unit* units;
    Ring<Config::q_stages> q_ring;
    Ring<Config::stages> k_ring, v_ring;
    // The block that it loads from.
    const CUtensorMap *k, *v;
    int first_tile = 0;
    std::uint64_t opened = 0;  // bits of the first blocks of the table
    std::uint32_t next_parity = 0;

    static __device__ __forceinline__ int in_pair() { return pairs ? block_of_cluster() : 0; }

    __device__ __forceinline__ void load(const CUtensorMap& map, std::uint32_t tile, int rows, int columns,
                                         Barrier full, int token, int head, int batch, Keep keep) {
        full.arrive_and_expect(rows * columns * 2);
        for (int column = 0; column < columns; column += 64)
            load_box(tile + column * rows * 2, map, full, column, token, head, batch, keep);
    }

    /// A tile of K or V; of a pair each block loads every second stretch of columns for both. `place`: who is first.
    __device__ __forceinline__ void load_keys(const CUtensorMap& map, std::uint32_t tile, int columns, Barrier full,
                                              int place, int token, int head, int batch) {
        constexpr int stretch_bytes = Config::keys * 128;
        if constexpr (!pairs) return load(map, tile, Config::keys, columns, full, token, head, batch, Keep::last_to_go);
        full.arrive_and_expect(columns / 64 * stretch_bytes);
        for (int i = 0; i < columns / 64; ++i)
            if ((i + place) % 2 == in_pair())
                load_box_for_both(tile + i * stretch_bytes, map, full, 64 * i, token, head, batch, Keep::last_to_go);
    }

    __device__ __forceinline__ void load_k(int tile, int head, int batch) {
        Barrier{shared + Shared::k_empty + 8 * k_ring.place}.wait(k_ring.parity ^ 1);
        load_keys(*k, shared + Shared::k + k_ring.place * Shared::k_bytes, Config::head,
                  Barrier{shared + Shared::k_full + 8 * k_ring.place}, k_ring.place, (tile - first_tile) * Config::keys,
                  head, batch);
        k_ring.advance();
    }

    __device__ __forceinline__ void load_v(int tile, int head, int batch) {
        Barrier{shared + Shared::v_empty + 8 * v_ring.place}.wait(v_ring.parity ^ 1);
        load_keys(*v, shared + Shared::v + v_ring.place * Shared::v_bytes, Config::value,
                  Barrier{shared + Shared::v_full + 8 * v_ring.place}, v_ring.place, (tile - first_tile) * Config::keys,
                  head, batch);
        v_ring.advance();
    }

    __device__ __forceinline__ void load_q(const Unit& unit) {
        Barrier{shared + Shared::q_empty + 8 * q_ring.place}.wait(q_ring.parity ^ 1);
        load(launch.q, shared + Shared::q + q_ring.place * Shared::q_bytes, Config::rows, Config::head,
             Barrier{shared + Shared::q_full + 8 * q_ring.place}, unit.tile * Config::rows, unit.head, unit.batch,
             Keep::first_to_go);
        q_ring.advance();
    }

    __device__ __forceinline__ void prefetch_carry(const Unit& unit) {
        for (int column = 0; column < Config::value; column += 32)
            prefetch_box(launch.carry, column, unit.tile * Config::rows, unit.head, unit.batch);
    }

    __device__ __forceinline__ Work work_at(int index) const {
        const auto& params = launch.params;
        const auto& joined = launch.joined;
        if (index >= launch.units) return {-1, -1, {}, 0, 0};
        // Pairs of heads where blocks go in pairs.
        const int query_heads = params.geometry.query_heads / blocks, group = params.geometry.group / blocks;
        const int heads = query_heads * params.geometry.batch;
        auto [tile, head] = place_of(index, launch.order, heads);
        if (index < joined.head_by_head * heads) {
            // Head by head, all batch elements of one together.
            const int together = group * params.geometry.batch, rest = index % (joined.head_by_head * together);
            tile = rest / together;
            head = rest % together;
            head = head / group * query_heads + head % group + index / (joined.head_by_head * together) * group;
        }
        const int item = joined.blocks ? __ldg(joined.first_items + tile) : tile;
        const int end = joined.blocks ? __ldg(joined.first_items + tile + 1) : tile + 1;
        return {item, end, __ldg(params.work.items + item), head % query_heads * blocks + in_pair(),
                head / query_heads};
    }

    /// The next unit's number: asked for a little before it is wanted, since the answer takes a while; not earlier, or
    /// the last units are given to blocks that have much to do still.
    __device__ __forceinline__ int ask_for_next() const {
        return in_pair() == 0 ? static_cast<int>(gridDim.x) / blocks + static_cast<int>(atomicAdd(launch.counter, 1u))
                              : 0;
    }
    /// Tells it to the second block of a pair.
    __device__ __forceinline__ int tell_next(int next) {
        const Barrier full{shared + Shared::next_full}, empty{shared + Shared::next_empty};
        if (in_pair() == 0) {
            // The last one to ask puts the counter back.
            if (next == launch.units + static_cast<int>(gridDim.x) / blocks - 1) *launch.counter = 0;
            if constexpr (!pairs) return next;
            empty.wait(next_parity ^ 1);
            send_to_block(shared + Shared::next, next, full, 1);
        } else {
            full.arrive_and_expect(sizeof(next));
            full.wait(next_parity);
            asm volatile("ld.shared.s32 %0, [%1];" : "=r"(next) : "r"(shared + Shared::next) : "memory");
            empty.arrive_released_at(0);  // or the first block's next number may be there before this one is read
        }
        next_parity ^= 1;
        return next;
    }

    /// Before the first load from a block. Returns the kv head as its maps count.
    __device__ __forceinline__ int open(int place, int kv_head) {
        const auto& joined = launch.joined;
        if (!joined.blocks) return kv_head;
        const int index = place * joined.groups + kv_head / joined.heads;
        const std::uint64_t bit = index < 64 ? std::uint64_t{1} << index : 0;
        if (!(opened & bit)) await_block(joined, index);
        opened |= bit;
        const JoinedBlock& block = joined.blocks[index];
        k = &block.k;
        v = &block.v;
        first_tile = block.first_tile;
        return kv_head % joined.heads;
    }

    __device__ __forceinline__ void tell(const Unit& unit, Ring<Shared::unit_slots>& slot) {
        Barrier{shared + Shared::unit_empty + 8 * slot.place}.wait(slot.parity ^ 1);
        units[slot.place] = unit;
        Barrier{shared + Shared::unit_full + 8 * slot.place}.arrive();
        slot.advance();
    }

    __device__ __forceinline__ void run() {
        const auto& params = launch.params;
        const int* entries = params.work.entries;
        Ring<Shared::unit_slots> slot;
        Work work = work_at(static_cast<int>(blockIdx.x) / blocks);
        while (work.item >= 0) {
            int next = 0;
            Work next_work;
            int4 item = work.first;
            for (int i = work.item; i < work.end; ++i) {
                constexpr int tiles = 65536;  // see Joined::first_items
                const bool is_first = i == work.item, is_last = i + 1 == work.end;
                const Unit unit{item.x % tiles, item.y, item.w, item.z, work.head, work.batch, is_last};
                const int place = item.x / tiles;
                if (!is_last) item = __ldg(params.work.items + i + 1);
                tell(unit, slot);

                // Tiles of its own that are still to be loaded when the next unit is asked for, and when it is looked
                // up.
                constexpr int asking = 4, looking_up = 2;
                const int ask_at = is_last ? max(unit.begin, unit.end - asking) : -1;
                const int look_up_at = is_last ? max(unit.begin, unit.end - looking_up) : -1;
                int kv_head = unit.head / params.geometry.group;
                int tile = unit.begin < unit.end ? __ldg(entries + unit.begin) >> 1 : 0;
                if (unit.begin < unit.end) {
                    kv_head = open(place, kv_head);
                    load_k(tile, kv_head, unit.batch);
                    if (is_first) load_q(unit);
                }
                if (is_first && launch.prefetch_carry) prefetch_carry(unit);
                if (is_last && unit.begin == unit.end) next_work = work_at(tell_next(ask_for_next()));
                for (int e = unit.begin; e < unit.end; ++e) {
                    if (e == ask_at) next = ask_for_next();
                    const int v_tile = tile;
                    if (e + 1 < unit.end) {
                        tile = __ldg(entries + e + 1) >> 1;
                        load_k(tile, kv_head, unit.batch);
                    }
                    if (e == look_up_at) next_work = work_at(tell_next(next));
                    load_v(v_tile, kv_head, unit.batch);
                }
            }
            work = next_work;
        }
        tell({-1, 0, 0, 0, 0, 0, true}, slot);
    }
};

template <class T, class Config, bool rewrite, bool pairs>
struct ForwardConsumer {
    using Shared = ForwardShared<Config>;
    static constexpr int keys = Config::keys, value = Config::value;

    const ForwardLaunch& launch;
    std::uint32_t shared;
    const Unit* units;
    int group;  // among the consumers
    int lane, row_in_tile, first_column;

    Ring<Config::q_stages> q_ring;
    Ring<Config::stages> k_ring, v_ring;
    Ring<Shared::unit_slots> slot;
    float o[value / 2], s[keys / 2], m[2], l[2], rescale[2];
    std::uint32_t p[keys / 16][4];

    // ---- turns: a warpgroup issues its products while it holds the token

    __device__ __forceinline__ void take_turn() { sync_named(1 + group, 256); }
    __device__ __forceinline__ void pass_turn() { arrive_named(1 + (group + 1) % Config::consumers, 256); }

    __device__ __forceinline__ void release(int barrier) {
        if (lane == 0) Barrier{shared + barrier}.arrive();
    }
    /// What both blocks of a pair fill.
    __device__ __forceinline__ void release_both(int barrier) {
        release(barrier);
        if (pairs && lane == 1) Barrier{shared + barrier}.arrive_at(block_of_cluster() ^ 1);
    }

    // ---- products. Where their tiles lie is known to be uniform, or descriptors would be made in threads' registers.

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

    __device__ __forceinline__ int row(const Unit& unit, int r) const {
        return unit.tile * Config::rows + row_in_tile + 8 * r;
    }

    __device__ __forceinline__ void hide(const Unit& unit, int key_tile) {
        const auto& geometry = launch.params.geometry;
        int4 bounds[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) bounds[r] = __ldg(geometry.row_bounds + row(unit, r));
        const int2* positions = reinterpret_cast<const int2*>(geometry.key_positions + key_tile * keys + first_column);
#pragma unroll
        for (int n = 0; n < keys / 8; ++n) {
            const int2 key = __ldg(positions + 4 * n);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                if (!device::sees(bounds[r], key.x)) s[4 * n + 2 * r] = device::minus_infinity();
                if (!device::sees(bounds[r], key.y)) s[4 * n + 2 * r + 1] = device::minus_infinity();
            }
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
        const float factor = rewrite ? 1.0f : rule.factor;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float a = fmaxf(s[2 * r], s[2 * r + 1]), b = fmaxf(s[4 + 2 * r], s[4 + 2 * r + 1]);
#pragma unroll
            for (int n = 2; n < keys / 8; n += 2) {
                a = fmaxf(a, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
                b = fmaxf(b, fmaxf(s[4 * n + 4 + 2 * r], s[4 * n + 4 + 2 * r + 1]));
            }
            float largest = fmaxf(a, b);
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            const float new_m = fmaxf(m[r], largest * factor);
            // A row that has seen nothing yet keeps m = -inf; any finite offset then gives p = 0.
            const float offset = partial && new_m == device::minus_infinity() ? 0.0f : new_m;
            rescale[r] = device::exp2_fast(m[r] - offset);
            m[r] = new_m;
            float x = 0, y = 0;
#pragma unroll
            for (int n = 0; n < keys / 8; ++n) {
                float& left = s[4 * n + 2 * r];
                float& right = s[4 * n + 2 * r + 1];
                left = device::exp2_fast(left * factor - offset);
                right = device::exp2_fast(right * factor - offset);
                x += left;
                y += right;
            }
            l[r] = l[r] * rescale[r] + (x + y);
        }
    }
    __device__ __forceinline__ void pack_scores() {
#pragma unroll
        for (int k = 0; k < keys / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) p[k][i] = device::pack<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
    __device__ __forceinline__ void rescale_output() {
#pragma unroll
        for (int i = 0; i < value / 2; ++i) o[i] *= rescale[i / 2 % 2];
    }

    // ---- tiles

    __device__ __forceinline__ int key_tile(int entry) const { return __ldg(launch.params.work.entries + entry) >> 1; }

    __device__ __forceinline__ void begin_rows() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[r] = device::minus_infinity();
            l[r] = 0;
        }
    }
    __device__ __forceinline__ void clear_output() {
#pragma unroll
        for (int i = 0; i < value / 2; ++i) o[i] = 0;
    }

    /// A unit's first tile when there is no other product to go with.
    __device__ __forceinline__ void first_tile(const Unit& unit) {
        const int tile = key_tile(unit.begin);
        wait_q();
        wait_k();
        issue_scores();
        wait_products<0>();
        pin(s);
        release_k();
        begin_rows();
        clear_output();
        unit.begin < unit.partial_end ? softmax<true>(unit, tile) : softmax<false>(unit, tile);
        pack_scores();
    }

    /// Issues the scores of a tile and the output of the one before, and waits for the scores.
    __device__ __forceinline__ void multiply_both() {
        wait_k();
        take_turn();
        issue_scores();
        wait_v();
        issue_output();
        pass_turn();
        wait_products<1>();
        pin(s);
        release_k();
    }

    /// Scores of a tile, and the output of the one before.
    template <bool partial>
    __device__ __forceinline__ void next_tile(const Unit& unit, int entry) {
        const int tile = partial ? key_tile(entry) : 0;
        multiply_both();
        softmax<partial>(unit, tile);
        pin(s);
        wait_products<0>();
        pin(o);
        release_v();
        rescale_output();
        pack_scores();
    }

    /// The same where the tile is the next unit's first: the unit before ends while the other warpgroups multiply.
    template <bool partial>
    __device__ __forceinline__ void first_tile_after(const Unit& before, const Unit& unit) {
        const int tile = partial ? key_tile(unit.begin) : 0;
        wait_q();
        multiply_both();
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

    // ---- a unit's end

    // Registers of O that take in their part of the carry at a time.
    static constexpr int carry_part = value <= keys ? value / 2 : 32;

    __device__ __forceinline__ bool exists(const Unit& unit, int r) const {
        return row(unit, r) < launch.params.geometry.query_tokens;
    }
    __device__ __forceinline__ std::int64_t index_of(const Elements& tensor, const Unit& unit, int r) const {
        return device::row_index(tensor.strides, unit.batch, row(unit, r), unit.head);
    }
    __device__ __forceinline__ float& value_of(const RowValues& rows, const Unit& unit, int r) const {
        return device::value_of(rows, unit.batch, row(unit, r), unit.head);
    }

    // A lane's two columns of eight are 8 bytes of fp32, and every instruction is of eight rows: so lanes 2 i and 2 i +
    // 1 change columns, the one to have four of eight and the other of the next eight; of 16 bits, four lanes do. Value
    // dims are multiples of 8, so columns exist or not by eights.

    /// The lane, asked for where a unit ends: what follows from it is not to be kept in registers over the loop.
    __device__ __forceinline__ int lane_anew() const {
        int x;
        asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
        return x;
    }

    /// For each two columns of two eights four of one, or the other way round.
    __device__ __forceinline__ void exchange(float2& a, float2& b, bool is_odd) const {
        const float2 sent = is_odd ? a : b;
        const float2 got = make_float2(__shfl_xor_sync(~0u, sent.x, 1), __shfl_xor_sync(~0u, sent.y, 1));
        (is_odd ? a : b) = got;
    }

    /// Of four lanes: element j of lane i becomes element i of lane j.
    __device__ __forceinline__ void transpose(std::uint32_t (&x)[4], int t) const {
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
            const bool upper = t & distance;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i & distance) continue;
                std::uint32_t &low = x[i], &high = x[i + distance];
                const std::uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, distance);
                (upper ? low : high) = got;
            }
        }
    }

    __device__ __forceinline__ void load_carry_part(const Unit& unit, int part) {
        const auto& carry = launch.params.carry_o;
        const int t = lane_anew() % 4, odd = t % 2, columns = launch.params.v.dim - 8 * odd;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float* from = static_cast<const float*>(carry.data) + index_of(carry, unit, r) + 6 * odd + 2 * t;
#pragma unroll
            for (int n = 0; n < carry_part / 4; n += 2) {
                const int column = part * (carry_part / 4) + n;
                const float4 four = exists(unit, r) && 8 * column < columns
                                        ? *reinterpret_cast<const float4*>(from + 8 * column)
                                        : make_float4(0, 0, 0, 0);
                s[4 * n + 2 * r] = four.x;
                s[4 * n + 2 * r + 1] = four.y;
                s[4 * n + 4 + 2 * r] = four.z;
                s[4 * n + 5 + 2 * r] = four.w;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int n = 0; n < carry_part / 4; n += 2) {
                float2 a = make_float2(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]);
                float2 b = make_float2(s[4 * n + 4 + 2 * r], s[4 * n + 5 + 2 * r]);
                exchange(a, b, odd);
                s[4 * n + 2 * r] = a.x;
                s[4 * n + 2 * r + 1] = a.y;
                s[4 * n + 4 + 2 * r] = b.x;
                s[4 * n + 5 + 2 * r] = b.y;
            }
    }

    /// What a unit leaves behind, from o, m and l. Uses the registers of the scores.
    __device__ __forceinline__ void finish(const Unit& unit) {
        sum_rows();
        if (!launch.params.first) merge_carry(unit);
        launch.params.last ? store_result(unit) : store_carry(unit);
    }

    __device__ __forceinline__ void sum_rows() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            l[r] += __shfl_xor_sync(~0u, l[r], 1);
            l[r] += __shfl_xor_sync(~0u, l[r], 2);
        }
    }

    __device__ __forceinline__ void merge_carry(const Unit& unit) {
        const auto& params = launch.params;
        float old[2];  // factor of the carry; rescale is the one of what this unit has
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float carry_m = exists(unit, r) ? value_of(params.carry_m, unit, r) : device::minus_infinity();
            const float carry_l = exists(unit, r) ? value_of(params.carry_l, unit, r) : 0.0f;
            const float new_m = fmaxf(m[r], carry_m);
            const float offset = new_m == device::minus_infinity() ? 0.0f : new_m;
            old[r] = device::exp2_fast(carry_m - offset);
            rescale[r] = device::exp2_fast(m[r] - offset);
            m[r] = new_m;
            l[r] = l[r] * rescale[r] + carry_l * old[r];
        }
#pragma unroll
        for (int part = 0; part < value / 2 / carry_part; ++part) {
            load_carry_part(unit, part);
#pragma unroll
            for (int i = 0; i < carry_part; ++i) {
                float& x = o[part * carry_part + i];
                x = x * rescale[i / 2 % 2] + s[i] * old[i / 2 % 2];
            }
        }
    }

    /// O times a factor per row, to a tensor in global memory.
    __device__ __forceinline__ void store(const Unit& unit, const Elements& to, const float (&factor)[2]) const {
        const int t = lane_anew() % 4, odd = t % 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool stored = exists(unit, r);
            const auto index = index_of(to, unit, r);
            const auto pair = [&](int n) {
                return make_float2(o[4 * n + 2 * r] * factor[r], o[4 * n + 2 * r + 1] * factor[r]);
            };
            if (to.dtype == DType::fp32) {
                float* target = static_cast<float*>(to.data) + index + 6 * odd + 2 * t;
                const int columns = launch.params.v.dim - 8 * odd;
#pragma unroll
                for (int n = 0; n < value / 8; n += 2) {
                    float2 a = pair(n), b = pair(n + 1);
                    exchange(a, b, odd);
                    if (stored && 8 * n < columns)
                        *reinterpret_cast<float4*>(target + 8 * n) = make_float4(a.x, a.y, b.x, b.y);
                }
            } else {
                auto* target = static_cast<std::uint16_t*>(to.data) + index + 8 * t;
                const int columns = launch.params.v.dim - 8 * t;
                const bool is_bf16 = to.dtype == DType::bf16;
#pragma unroll
                for (int n = 0; n < value / 8; n += 4) {
                    std::uint32_t x[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        x[i] = is_bf16 ? device::pack<__nv_bfloat16>(pair(n + i).x, pair(n + i).y)
                                       : device::pack<__half>(pair(n + i).x, pair(n + i).y);
                    transpose(x, t);
                    if (stored && 8 * n < columns)
                        *reinterpret_cast<uint4*>(target + 8 * n) = make_uint4(x[0], x[1], x[2], x[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void store_carry(const Unit& unit) {
        const auto& params = launch.params;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (!exists(unit, r) || lane % 4 != 0) continue;
            value_of(params.carry_m, unit, r) = m[r];
            value_of(params.carry_l, unit, r) = l[r];
        }
        store(unit, params.carry_o, {1.0f, 1.0f});
    }

    __device__ __forceinline__ void store_result(const Unit& unit) {
        const auto& params = launch.params;
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            inverse[r] = l[r] > 0 ? 1.0f / l[r] : 0.0f;
            if (params.lse.data && exists(unit, r) && lane % 4 == 0)
                value_of(params.lse, unit, r) = device::natural_lse(m[r], l[r]);
        }
        if (params.o.data) store(unit, params.o, inverse);
        if (params.o_rounded.data) store(unit, params.o_rounded, inverse);
    }
};

template <class T, class Config, bool rewrite, bool pairs>
__global__ void __launch_bounds__(128 * (1 + Config::consumers), 1)
    forward_kernel(const __grid_constant__ ForwardLaunch launch) {
    using Shared = ForwardShared<Config>;
    extern __shared__ __align__(1024) unsigned char memory[];
    const std::uint32_t shared = shared_address(memory);
    auto* units = reinterpret_cast<Unit*>(memory + Shared::units);
    const int group = uniform(static_cast<int>(threadIdx.x) / 128);

    if (threadIdx.x == 0) {
        prefetch_map(launch.q);
        prefetch_map(launch.k);
        prefetch_map(launch.v);
        constexpr int warps = 4 * Config::consumers;
        for (int i = 0; i < Config::stages; ++i) {
            Barrier{shared + Shared::k_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::v_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::k_empty + 8 * i}.initialise(pairs ? 2 * warps : warps);
            Barrier{shared + Shared::v_empty + 8 * i}.initialise(pairs ? 2 * warps : warps);
        }
        for (int i = 0; i < Shared::unit_slots; ++i) {
            Barrier{shared + Shared::unit_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::unit_empty + 8 * i}.initialise(warps);
        }
        for (int i = 0; i < Config::q_stages; ++i) {
            Barrier{shared + Shared::q_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::q_empty + 8 * i}.initialise(warps);
        }
        Barrier{shared + Shared::next_full}.initialise(1);
        Barrier{shared + Shared::next_empty}.initialise(1);
        fence_barrier_initialisation();
    }
    pairs ? sync_cluster() : __syncthreads();  // the other block's barriers, too

    if (group == 0) {
        shrink_registers<Config::producer_registers>();
        if (threadIdx.x / 32 == 0 && elected())
            ForwardProducer<Config, pairs>{launch, shared, units, {}, {}, {}, &launch.k, &launch.v}.run();
    } else {
        grow_registers<Config::consumer_registers>();
        const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
        ForwardConsumer<T, Config, rewrite, pairs> consumer{
            launch, shared, units, group - 1, lane, 64 * (group - 1) + thread / 32 * 16 + lane / 4, 2 * (lane % 4)};
        consumer.run();
    }
    if constexpr (pairs) sync_cluster();  // the other block has no more to tell this one
}

/// Multiprocessors of the current device.
inline int multiprocessors() {
    int device = 0, count = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

template <class T, class Config>
void launch_forward_with(const ForwardLaunch& arguments, cudaStream_t stream) {
    const int clusters = std::min(multiprocessors() / arguments.blocks, arguments.units);
    if (clusters == 0) return;
    const auto kernel = [&] {
        if constexpr (Config::pairs)
            if (arguments.blocks == 2) return forward_kernel<T, Config, false, true>;
        return arguments.params.rule.rewrite ? forward_kernel<T, Config, true, false>
                                             : forward_kernel<T, Config, false, false>;
    };
    launch_in_clusters(kernel(), "forward kernel for sm_90a", clusters, arguments.blocks, 128 * (1 + Config::consumers),
                       ForwardShared<Config>::bytes, arguments, stream);
}

template <DimClass dims>
void launch_forward(const ForwardLaunch& arguments, DType dtype, cudaStream_t stream) {
    dtype == DType::bf16 ? launch_forward_with<__nv_bfloat16, ForwardConfig<dims>>(arguments, stream)
                         : launch_forward_with<__half, ForwardConfig<dims>>(arguments, stream);
}

}  // namespace ringlab::gpu::hopper
