#pragma once

#include "gpu/kernels/hopper/common/bulk_copy.cuh"
#include "gpu/kernels/hopper/common/shared_access.cuh"
#include "gpu/kernels/hopper/common/work_tiles.cuh"
#include "gpu/kernels/hopper/forward/forward.hpp"
#include "gpu/kernels/hopper/forward/forward_shared.cuh"

namespace ringlab::gpu::hopper {

/// A work tile of a thread block: its range of entries (items) in the work list, one for each part.
struct Work {
    int item, end;  // item -1: there is no work tile left
    int4 first;     // the entry at `item`
    int head, batch;
};

/// One thread that loads what the consumers of its thread block multiply.
template <class Config, bool drops>
struct ForwardProducer {
    using Shared = ForwardShared<Config>;
    static constexpr bool staged = stages_tests<Config>;
    const ForwardLaunch& launch;
    std::uint32_t shared;
    Unit* units;
    Ring<Config::q_stages> q_ring;
    Ring<Config::stages> k_ring, v_ring;
    // The K/V block that it loads from now.
    const CUtensorMap *k, *v;
    int first_tile = 0;
    std::uint32_t boxes_parity = 0;
    std::uint64_t opened = 0;  // one bit for each of the first 64 K/V blocks: it has arrived

    /// `more_bytes`: bytes that the caller loads as well, and that the same barrier counts.
    __device__ __forceinline__ void load(const CUtensorMap& map, std::uint32_t tile, int rows, int columns,
                                         Barrier full, int token, int head, int batch, Keep keep, int more_bytes) {
        full.arrive_and_expect(rows * columns * 2 + more_bytes);
        for (int column = 0; column < columns; column += 64)
            load_box(tile + column * rows * 2, map, full, column, token, head, batch, keep);
    }

    __device__ __forceinline__ void load_k(int tile, bool is_partial, int head, int batch) {
        Barrier{shared + Shared::k_empty + 8 * k_ring.place}.wait(k_ring.parity ^ 1);
        const Barrier full{shared + Shared::k_full + 8 * k_ring.place};
        const bool with_positions = staged && (drops || is_partial);
        load(*k, shared + Shared::k + k_ring.place * Shared::k_bytes, Config::keys, Config::head, full,
             (tile - first_tile) * Config::keys, head, batch, Keep::last_to_go,
             with_positions ? Shared::positions_bytes : 0);
        if (with_positions)
            load_bytes(shared + Shared::positions + k_ring.place * Shared::positions_bytes,
                       launch.params.geometry.key_positions + tile * Config::keys, Shared::positions_bytes, full);
        k_ring.advance();
    }

    __device__ __forceinline__ void load_v(int tile, int head, int batch) {
        Barrier{shared + Shared::v_empty + 8 * v_ring.place}.wait(v_ring.parity ^ 1);
        load(*v, shared + Shared::v + v_ring.place * Shared::v_bytes, Config::keys, Config::value,
             Barrier{shared + Shared::v_full + 8 * v_ring.place}, (tile - first_tile) * Config::keys, head, batch,
             Keep::last_to_go, 0);
        v_ring.advance();
    }

    __device__ __forceinline__ void load_q(int tile, int head, int batch) {
        Barrier{shared + Shared::q_empty + 8 * q_ring.place}.wait(q_ring.parity ^ 1);
        const Barrier full{shared + Shared::q_full + 8 * q_ring.place};
        load(launch.q, shared + Shared::q + q_ring.place * Shared::q_bytes, Config::rows, Config::head, full,
             tile * Config::rows, head, batch, Keep::first_to_go, staged ? Shared::bounds_bytes : 0);
        if constexpr (staged)
            load_bytes(shared + Shared::bounds + q_ring.place * Shared::bounds_bytes,
                       launch.params.geometry.row_bounds + tile * Config::rows, Shared::bounds_bytes, full);
        q_ring.advance();
    }

    /// Takes the next place of Q for a work tile that needs no Q, but a place for the boxes of its carry.
    __device__ __forceinline__ void reserve_q() {
        Barrier{shared + Shared::q_empty + 8 * q_ring.place}.wait(q_ring.parity ^ 1);
        Barrier{shared + Shared::q_full + 8 * q_ring.place}.arrive();
        q_ring.advance();
    }

    /// Loads the boxes of a work tile's carry as soon as the consumers no longer need its Q, at `q_place`.
    __device__ __forceinline__ void load_carry(const Unit& unit, int q_place) {
        Barrier{shared + Shared::boxes_free}.wait(boxes_parity);
        boxes_parity ^= 1;
        const Barrier full{shared + Shared::boxes_full};
        full.arrive_and_expect(Shared::boxes * Shared::box_bytes);
#pragma unroll
        for (int i = 0; i < Shared::boxes; ++i)
            load_box(shared + Shared::box(i, q_place), launch.carry, full, i * Shared::box_columns,
                     unit.tile * Config::rows, unit.head, unit.batch, Keep::first_to_go);
    }

    __device__ __forceinline__ void prefetch_carry(const Unit& unit) {
        for (int column = 0; column < Config::value; column += 32)
            prefetch_box(launch.carry, column, unit.tile * Config::rows, unit.head, unit.batch);
    }

    __device__ __forceinline__ Work work_at(int index) const {
        const auto& params = launch.params;
        const auto& fused = launch.fused;
        if (index >= launch.work_tiles) return {-1, -1, {}, 0, 0};
        const int query_heads = params.geometry.query_heads, group = params.geometry.group;
        const int heads = query_heads * params.geometry.batch;
        auto [tile, head] = place_of(index, launch.order, heads);
        if (index < fused.head_by_head * heads) {
            // Head by head; all batch elements of a head come together.
            const int together = group * params.geometry.batch, rest = index % (fused.head_by_head * together);
            tile = rest / together;
            head = rest % together;
            head = head / group * query_heads + head % group + index / (fused.head_by_head * together) * group;
        }
        const int item = fused.blocks ? __ldg(fused.first_parts + tile) : tile;
        const int end = fused.blocks ? __ldg(fused.first_parts + tile + 1) : tile + 1;
        return {item, end, __ldg(params.work.items + item), head % query_heads, head / query_heads};
    }

    /// Takes the number of the next work tile from the counter. The answer takes a while, so it is asked for a little
    /// before it is needed. It must not be asked for earlier, or the last work tiles go to thread blocks that still
    /// have much to do.
    __device__ __forceinline__ int ask_for_next() const {
        return static_cast<int>(gridDim.x) + static_cast<int>(atomicAdd(launch.counter, 1u));
    }
    __device__ __forceinline__ Work look_up(int next) const {
        // The last thread block that asks sets the counter back to 0.
        if (next == launch.work_tiles + static_cast<int>(gridDim.x) - 1) *launch.counter = 0;
        return work_at(next);
    }

    /// Waits until a K/V block has arrived, and loads from it from now on. Returns the index of the kv head in this
    /// block.
    __device__ __forceinline__ int open(int place, int kv_head) {
        const auto& fused = launch.fused;
        if (!fused.blocks) return kv_head;
        const int index = place * fused.groups + kv_head / fused.heads;
        const std::uint64_t bit = index < 64 ? std::uint64_t{1} << index : 0;
        if (!(opened & bit)) await_block(fused, index);
        opened |= bit;
        const FusedLaunchBlock& block = fused.blocks[index];
        k = &block.k;
        v = &block.v;
        first_tile = block.first_tile;
        return kv_head % fused.heads;
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
        Work work = work_at(static_cast<int>(blockIdx.x));
        bool has_q = false;  // Q of the current work tile is loaded or being loaded
        const bool carries = !params.first, boxes = carries && Shared::boxes > 0;
        bool has_before = false;  // the boxes of the work tile before are still to be loaded
        while (work.item >= 0) {
            bool next_has_q = false;
            int next = 0;
            Work next_work;
            int4 item = work.first;
            for (int i = work.item; i < work.end; ++i) {
                constexpr int tiles = 65536;  // see FusedLaunch::first_parts
                const bool is_first = i == work.item, is_last = i + 1 == work.end;
                const Unit unit{item.x % tiles, item.y, item.w, item.z, work.head, work.batch, is_last};
                const int place = item.x / tiles;
                if (!is_last) item = __ldg(params.work.items + i + 1);
                tell(unit, slot);

                // The number of the next work tile is asked for when so many key tiles of this one are still to be
                // loaded, and is looked up when so many are.
                constexpr int asking = 4, looking_up = 2;
                const int ask_at = is_last ? max(unit.begin, unit.end - asking) : -1;
                const int look_up_at = is_last ? max(unit.begin, unit.end - looking_up) : -1;
                int kv_head = unit.head / params.geometry.group;
                int tile = unit.begin < unit.end ? __ldg(entries + unit.begin) >> 1 : 0;
                if (unit.begin < unit.end) {
                    kv_head = open(place, kv_head);
                    load_k(tile, unit.begin < unit.partial_end, kv_head, unit.batch);
                    if (is_first && !has_q) load_q(unit.tile, unit.head, unit.batch);
                }
                if (is_first && carries && !boxes) prefetch_carry(unit);
                if (is_last && unit.begin == unit.end) {
                    if (boxes) reserve_q();
                    if (has_before) load_carry(units[slot.place], q_ring.place);
                    next_work = look_up(ask_for_next());
                }
                for (int e = unit.begin; e < unit.end; ++e) {
                    if (e == ask_at) next = ask_for_next();
                    const int v_tile = tile;
                    if (e + 1 < unit.end) {
                        tile = __ldg(entries + e + 1) >> 1;
                        load_k(tile, e + 1 < unit.partial_end, kv_head, unit.batch);
                    }
                    load_v(v_tile, kv_head, unit.batch);
                    // Before the next Q, which takes the place of these boxes.
                    if (e == unit.begin && is_first && has_before) load_carry(units[slot.place], q_ring.place);
                    if (e == look_up_at) {
                        next_work = look_up(next);
                        if constexpr (staged) {  // Q comes from device memory, which takes longer than K from L2
                            next_has_q = next_work.item >= 0 && next_work.first.y < next_work.first.z;
                            if (next_has_q) load_q(next_work.first.x % tiles, next_work.head, next_work.batch);
                        }
                    }
                }
            }
            has_before = boxes;
            work = next_work;
            has_q = next_has_q;
        }
        tell({-1, 0, 0, 0, 0, 0, true}, slot);
        if (has_before) load_carry(units[slot.place], q_ring.place ^ 1);
    }
};

}  // namespace ringlab::gpu::hopper
