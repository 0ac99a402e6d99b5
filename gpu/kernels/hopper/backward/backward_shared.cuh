#pragma once

#include "gpu/kernels/hopper/backward/backward.hpp"
#include "gpu/kernels/hopper/common/cluster.cuh"
#include "gpu/kernels/hopper/common/mbarrier.cuh"
#include "gpu/kernels/hopper/common/shared_access.cuh"
#include "gpu/kernels/hopper/common/tensor_map.hpp"
#include "gpu/kernels/hopper/common/work_tiles.cuh"

// What the warps of the backward kernel share: parameters, shared memory and its barriers, and the work of a thread
// block.

namespace ringlab::gpu::hopper {

struct BackwardKernelParams {
    CUtensorMap q, k, v, dout, dq;
    BackwardParams params;
    FusedLaunch fused;
    WorkTileOrder order;
    const int* turns;
    int* flags;  // deterministic dq: semaphores, one for each query tile of a head
};

/// The part of a step's dq that a warpgroup computes, over all keys:
///
///     head dim 64     half of the rows, all dims
///     head dim 128    all rows, 64 dims
///     head dim 192    all rows, 64 dims; and half of the rows of the last 64 dims
///     head dim 256    all rows, 2 x 64 dims
template <class Config>
struct DqPart {
    static constexpr bool split_by_dim = Config::head > 64;
    static constexpr bool has_second = Config::head > 128, second_by_rows = Config::head == 192;
    static constexpr int rows = split_by_dim ? Config::rows : Config::rows / 2, count = rows / 2;  // registers
    static constexpr int second_rows = second_by_rows ? rows / 2 : rows, second_count = second_rows / 2;
    static constexpr int added_rows = second_rows;  // that one bulk copy adds, 32 dims of each
    static constexpr int box_bytes = rows * 128, bytes = 2 * box_bytes;

    __device__ static int first_dim(int warpgroup) { return split_by_dim ? Config::head / 128 * 64 * warpgroup : 0; }
    __device__ static int second_dim(int warpgroup) { return Config::head == 192 ? 128 : first_dim(warpgroup) + 64; }
    __device__ static int second_row(int warpgroup) { return second_by_rows ? second_rows * warpgroup : 0; }
    __device__ static int first_row(int warpgroup) { return split_by_dim ? 0 : rows * warpgroup; }
};

/// The barriers of a thread block. One lane arrives for its warp.
template <class Config>
struct BackwardBarriers {
    std::uint32_t first;

    static constexpr int q_stages = Config::q_stages, dout_stages = Config::dout_stages;
    static constexpr int count = 6 + 4 * q_stages + 2 * dout_stages + (Config::split_dims ? 2 * dout_stages : 0);

    __device__ Barrier at(int i) const { return {first + static_cast<std::uint32_t>(i) * 8}; }
    __device__ Barrier keys_full() const { return at(0); }
    __device__ Barrier scores_ended() const { return at(1); }
    __device__ Barrier ds_full(int warpgroup) const { return at(2 + (Config::split_dims ? warpgroup : 0)); }
    __device__ Barrier dq_empty(int warpgroup) const { return at(4 + warpgroup); }
    __device__ Barrier q_full(int stage) const { return at(6 + stage); }
    __device__ Barrier q_empty(int stage) const { return at(6 + q_stages + stage); }
    // dq_full has a barrier for each stage of Q, so that several threads may take steps alternately. With split dims it
    // is for the part of dq in the warpgroup's half of that stage, and dq_full_in_dout for the part in its half of dO.
    __device__ Barrier dq_full(int warpgroup, int stage) const { return at(6 + (2 + warpgroup) * q_stages + stage); }
    __device__ Barrier dout_full(int stage) const { return at(6 + 4 * q_stages + stage); }
    __device__ Barrier dout_empty(int stage) const { return at(6 + 4 * q_stages + dout_stages + stage); }
    __device__ Barrier dq_full_in_dout(int warpgroup, int stage) const {
        return at(6 + 4 * q_stages + (2 + warpgroup) * dout_stages + stage);
    }

    __device__ void initialise() const {
        constexpr int warps = 8, warpgroup_warps = 4, lanes = 32;
        keys_full().initialise(1);
        scores_ended().initialise(warps);
        constexpr int emptying = Config::split_dims ? 2 : warps;  // arrivals: threads that add dq, or warps that read
        for (int i = 0; i < 2; ++i) {
            ds_full(i).initialise(Config::split_dims ? warpgroup_warps : warps);
            dq_empty(i).initialise(1);
            for (int stage = 0; stage < q_stages; ++stage) dq_full(i, stage).initialise(warpgroup_warps);
        }
        for (int i = 0; i < q_stages; ++i) {
            q_full(i).initialise(1 + lanes);  // the bulk copies, and each lane's copies of statistics and bounds
            q_empty(i).initialise(emptying);
        }
        for (int i = 0; i < dout_stages; ++i) {
            dout_full(i).initialise(1);
            dout_empty(i).initialise(emptying);
        }
        if constexpr (Config::split_dims)
            for (int warpgroup = 0; warpgroup < 2; ++warpgroup)
                for (int i = 0; i < dout_stages; ++i) dq_full_in_dout(warpgroup, i).initialise(warpgroup_warps);
    }
};

/// Byte offsets in shared memory. A tile is stored as stretches of 64 columns (dq: 32), as bulk copies write them.
template <class Config>
struct BackwardLayout {
    static constexpr int q_bytes = Config::rows * Config::head * 2, dout_bytes = Config::rows * Config::value * 2;
    static constexpr int k_bytes = Config::keys * Config::head * 2, v_bytes = Config::keys * Config::value * 2;
    // lse of each row; then delta; then, in a partial tile or with dropout, bounds. For each step its entry of the work
    // list and, with dropout, its query head. A thread reads lse (or delta) of rows 2 t and 2 t + 1 of each eight, with
    // t = lane % 4, by loads of 8 bytes: loads of 16 bytes of which a warp needs four had two bank conflicts each.
    static constexpr int delta = Config::rows * 4;
    static constexpr int bounds = 2 * delta, entry = bounds + Config::rows * 16, query_head = entry + 4;
    static constexpr int rows_bytes = (entry + 16 + 127) / 128 * 128;

    static constexpr int ds_stretches = (Config::rows + 63) / 64, ds_bytes = ds_stretches * Config::keys * 128;

    // Two buffers of dS: a warpgroup writes the next dS while the other still reads the last. Split dims: one for each.
    static constexpr int k = 0, v = k + k_bytes, q = v + v_bytes, dout = q + Config::q_stages * q_bytes;
    static constexpr int ds = dout + Config::dout_stages * dout_bytes, dq = ds + 2 * ds_bytes;
    // A warpgroup's parts of dq. With split dims they lie in the halves of dO and Q that only this warpgroup still
    // reads.
    static constexpr int part_bytes = DqPart<Config>::bytes;
    static constexpr int dq_bytes = Config::split_dims ? 0 : (DqPart<Config>::has_second ? 2 : 1) * part_bytes;
    static_assert(!Config::split_dims || (2 * part_bytes == q_bytes && 2 * part_bytes == dout_bytes));
    static constexpr int rows = dq + 2 * dq_bytes, barriers = rows + Config::q_stages * rows_bytes;
    static constexpr int share = barriers + (BackwardBarriers<Config>::count * 8 + 15) / 16 * 16;  // Share
    static constexpr int bytes = share + 32;

    __device__ static int dq_of(int warpgroup) { return dq + warpgroup * dq_bytes; }
    __device__ static int dq_in_dout(int stage) { return dout + stage * dout_bytes; }  // of the first warpgroup
    __device__ static int dq_in_q(int stage) { return q + stage * q_bytes; }
};

constexpr int backward_threads = 3 * 128, computing_threads = 2 * 128;

/// A position in a ring of stages, which is gone through twice: first with parity 0, then with parity 1.
template <int stages>
struct Stage {
    int position = 0;

    __device__ int index() const { return position < stages ? position : position - stages; }
    __device__ std::uint32_t parity() const { return position < stages ? 0 : 1; }
    __device__ void advance() { position = position + 1 < 2 * stages ? position + 1 : 0; }
};

/// The work of a thread block: the query tiles that its work tile meets, for all query heads of the group, in `steps`.
struct Share {
    int4 item;
    int batch, kv_head, steps;
    int from_end;  // rows from the last tile to the first
};

/// Reads the Share from shared memory, where one thread has put it. It is read again whenever it is needed, so
/// that it takes no registers in between.
__device__ inline Share load_share(std::uint32_t address) {
    const int4 rest = load_shared_int4(address + 16);
    return {load_shared_int4(address), rest.x, rest.y, rest.z, rest.w};
}

/// Not inlined: inlined it changes the use of registers, and ptxas then serialises the products of head dim 64.
__device__ __noinline__ inline Share share_of_block(const BackwardKernelParams& all) {
    const auto& geometry = all.params.geometry;
    const int heads = all.fused.blocks ? all.fused.heads : geometry.query_heads / geometry.group;
    const int blocks = blocks_of_cluster();
    int unit = static_cast<int>(blockIdx.x) / blocks, first_item = 0;
    if (all.fused.blocks && all.order.in_lockstep) {  // one K/V block after another
        const int units = all.order.leading_tiles * heads * geometry.batch;
        first_item = unit / units * all.order.leading_tiles;
        unit %= units;
    }
    const Place place = place_of(unit, all.order, heads * geometry.batch);
    Share share{__ldg(all.params.work.items + first_item + place.item), place.head / heads, place.head % heads, 0, 0};
    if (all.fused.blocks) share.kv_head += all.fused.blocks[share.item.w].first_head;
    const int all_steps = (share.item.z - share.item.y) * geometry.group;
    share.steps = (all_steps + blocks - 1 - block_of_cluster()) / blocks;
    share.from_end = all.order.in_lockstep ? section_of(unit, all.order) % 2 == 0 : all.turns != nullptr;
    return share;
}

/// The steps of a Share, in order. Thread blocks of a cluster share a work tile and take its steps alternately.
///
/// The order is head by head. In lockstep with other thread blocks (WorkTileOrder) it is tile by tile: all heads of a
/// query tile, then the next query tile. Work tiles that add to dq in a fixed order go from the last query tile to the
/// first, and tile by tile if they have the last one in common: each is then a step or two behind its predecessor.
struct QueryTiles {
    const int *entries, *turns;
    int begin, end, group, first_head;
    bool by_tile, from_end;
    int e, head;

    __device__ QueryTiles(const BackwardKernelParams& all, const Share& share)
        : entries(all.params.work.entries),
          turns(all.turns),
          begin(share.item.y),
          end(share.item.z),
          group(all.params.geometry.group),
          first_head(share.kv_head * group),
          by_tile((turns && !all.order.by_head) || all.order.in_lockstep),
          from_end(share.from_end),
          e(begin),
          head(first_head) {
        if (share.steps > 0)
            for (int i = 0; i < block_of_cluster(); ++i) next();
    }
    __device__ int place() const { return from_end ? begin + end - 1 - e : e; }
    __device__ int entry() const { return __ldg(entries + place()); }
    __device__ int turn() const { return __ldg(turns + place()); }
    __device__ void next() {
        if (by_tile) {
            if (++head == first_head + group) {
                head = first_head;
                ++e;
            }
        } else if (++e == end) {
            e = begin;
            ++head;
        }
    }
    __device__ void advance() {
        for (int i = 0; i < blocks_of_cluster(); ++i) next();
    }
};

}  // namespace ringlab::gpu::hopper
