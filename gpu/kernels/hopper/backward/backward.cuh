#pragma once

#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/backward/backward.hpp"
#include "gpu/kernels/hopper/backward/backward_config.hpp"
#include "gpu/kernels/hopper/ptx/bulk_copy.cuh"
#include "gpu/kernels/hopper/ptx/cluster.cuh"
#include "gpu/kernels/hopper/ptx/mbarrier.cuh"
#include "gpu/kernels/hopper/ptx/shared_access.cuh"
#include "gpu/kernels/hopper/ptx/tensor_map.hpp"
#include "gpu/kernels/hopper/ptx/wgmma.cuh"
#include "gpu/kernels/hopper/units/joined.cuh"
#include "gpu/kernels/hopper/units/unit_order.cuh"

// Backward pass of one attend on sm_90a; the formulas are those of the portable backward.cuh.
//
// A thread block stays on a tile of 128 keys of one kv head and goes over the query tiles of all query heads that read
// it. Two warpgroups compute, 64 keys each: S^T = K Q^T and dP^T = V dO^T, whose results, rounded, are the left
// operands of dV += P^T dO and dK += dS^T Q as they lie in registers; so dK and dV stay in registers and are written
// once. dQ sums over keys: dS goes through shared memory to dQ^T = K^T dS^T, of which each warpgroup computes a part
// over all keys; fp32 parts go through shared memory to global memory, added there by the bulk copy engine. A third
// warpgroup feeds them: warp 0 loads Q, dO and the rows' statistics, warps 1 and 2 add the parts of dQ.
//
// Where dims are split (head dim 256), dK and dV of 64 keys fill the registers of both warpgroups: they work on the
// same 64 keys, both compute S and dP, and each has half of the dims of dK, dV and dQ. Nothing goes between them but
// that they are done with a stage: each puts its parts of dQ into the half of dO and Q that it alone reads last.
//
// What runs under what: products are issued in the order S, dQ of the step before, dP, dV, dK. exp2 runs under that dQ,
// dQ's way to shared memory under dP, dS under dV; and the other warpgroup's dS, which dQ wants as well, has long been
// there. Where dims are split there are no registers for that: S, dP, dV, dQ, dK, exp2 under dP and dQ's way under dK.
// While one warpgroup waits, the other's products run.

namespace ringlab::gpu::hopper {

using device::exp2_fast;
using device::pack;
using device::score_of;
using device::sees;
using device::slope_of;
using device::unpack;

struct BackwardKernelParams {
    CUtensorMap q, k, v, dout, dq;
    BackwardParams params;
    Joined joined;
    WorkTileOrder order;
    const int* turns;
    int* flags;  // to take turns by
};

/// What a warpgroup computes of a step's dq: `rows` query rows x 64 dims over all keys. Of head dim 192 each does half
/// of the rows of the last 64 dims too; of head dim 256 each does 64 dims more; of head dim 64 each does half of the
/// rows.
template <class Config>
struct DqPart {
    static constexpr bool split_by_dim = Config::head > 64;
    static constexpr bool has_second = Config::head > 128, second_by_rows = Config::head == 192;
    static constexpr int rows = split_by_dim ? Config::rows : Config::rows / 2, count = rows / 2;  // registers
    static constexpr int second_rows = second_by_rows ? rows / 2 : rows, second_count = second_rows / 2;
    static constexpr int added_rows = second_rows;  // by a bulk copy, 32 dims of each
    static constexpr int box_bytes = rows * 128, bytes = 2 * box_bytes;

    __device__ static int first_dim(int warpgroup) { return split_by_dim ? Config::head / 128 * 64 * warpgroup : 0; }
    __device__ static int second_dim(int warpgroup) { return Config::head == 192 ? 128 : first_dim(warpgroup) + 64; }
    __device__ static int second_row(int warpgroup) { return second_by_rows ? second_rows * warpgroup : 0; }
    __device__ static int first_row(int warpgroup) { return split_by_dim ? 0 : rows * warpgroup; }
};

/// The barriers of a thread block. A warp arrives by one lane.
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
    // Of the step whose Q lies in that stage, so that several threads may take steps in turns. Where dims are split, of
    // the part of dq that lies in the warpgroup's half of it; and the other part in that of dO.
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
        constexpr int emptying = Config::split_dims ? 2 : warps;  // threads that add dq, or warps that read
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

/// Places in shared memory, in bytes. Every tile is stretches of 64 columns (32 of dq), as bulk copies leave them.
template <class Config>
struct BackwardLayout {
    static constexpr int q_bytes = Config::rows * Config::head * 2, dout_bytes = Config::rows * Config::value * 2;
    static constexpr int k_bytes = Config::keys * Config::head * 2, v_bytes = Config::keys * Config::value * 2;
    // Of each row lse, delta and its bounds (in a partial tile), and of the step its entry of the work list. A thread
    // reads lse, or delta, of the rows 2 t and 2 t + 1 of each eight, t = lane % 4: they lie together, by fours, and
    // t's part begins in other banks than those of the other t.
    static constexpr int thread_rows_bytes = Config::rows + 16, delta = 4 * thread_rows_bytes;
    static constexpr int bounds = 2 * delta, entry = bounds + Config::rows * 16, rows_bytes = entry + 16;
    __device__ static int place_of_row(int row) { return row % 8 / 2 * thread_rows_bytes + row / 8 * 8 + row % 2 * 4; }

    static_assert(Config::rows <= 64);
    static constexpr int ds_bytes = Config::keys * 128;

    // Two of dS: a warpgroup writes the next while the other still reads the last; or one for each.
    static constexpr int k = 0, v = k + k_bytes, q = v + v_bytes, dout = q + Config::q_stages * q_bytes;
    static constexpr int ds = dout + Config::dout_stages * dout_bytes, dq = ds + 2 * ds_bytes;
    // A warpgroup's parts of dq; where dims are split, they lie in the halves of dO and Q that it alone reads last.
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

/// A place in a ring of stages: which, and the parity of its phase.
template <int stages>
struct Stage {
    int index = 0;
    std::uint32_t parity = 0;

    __device__ void advance() {
        if (++index == stages) {
            index = 0;
            parity ^= 1;
        }
    }
};

/// What a thread block does: query tiles of an item for the query heads of its group, `steps` in all.
struct Share {
    int4 item;
    int batch, kv_head, steps;
    int from_end;  // rows from the last tile to the first
};

/// From shared memory, where the first thread puts it: asked for anew, nothing of it takes a register meanwhile.
__device__ inline Share load_share(std::uint32_t address) {
    const int4 rest = load_shared_int4(address + 16);
    return {load_shared_int4(address), rest.x, rest.y, rest.z, rest.w};
}

/// Not inlined: what it changes about registers serialised products of D 64.
__device__ __noinline__ inline Share share_of_block(const BackwardKernelParams& all) {
    const auto& geometry = all.params.geometry;
    const int heads = all.joined.blocks ? all.joined.heads : geometry.query_heads / geometry.group;
    const int blocks = blocks_of_cluster();
    int unit = static_cast<int>(blockIdx.x) / blocks, first_item = 0;
    if (all.joined.blocks && all.order.in_lockstep) {  // of each block in turn
        const int units = all.order.leading_tiles * heads * geometry.batch;
        first_item = unit / units * all.order.leading_tiles;
        unit %= units;
    }
    const Place place = place_of(unit, all.order, heads * geometry.batch);
    Share share{__ldg(all.params.work.items + first_item + place.item), place.head / heads, place.head % heads, 0, 0};
    if (all.joined.blocks) share.kv_head += all.joined.blocks[share.item.w].first_head;
    const int all_steps = (share.item.z - share.item.y) * geometry.group;
    share.steps = (all_steps + blocks - 1 - block_of_cluster()) / blocks;
    share.from_end = all.order.in_lockstep ? section_of(unit, all.order) % 2 == 0 : all.turns != nullptr;
    return share;
}

/// Where dk and dv go.
struct GradientTarget {
    Elements dk, dv;
    bool adds;
    int joined_block;
    int first_key, key_tokens, batch, head;  // as their tensors count

    __device__ GradientTarget(const BackwardKernelParams& all, const Share& share, int keys) {
        const bool joined = all.joined.blocks != nullptr;
        const JoinedBlock* block = all.joined.blocks + (joined ? share.item.w : 0);
        dk = joined ? block->dk : all.params.dk;
        dv = joined ? block->dv : all.params.dv;
        adds = joined ? block->adds : all.params.adds;
        joined_block = share.item.w;
        first_key = (share.item.x - (joined ? block->first_tile : 0)) * keys;
        key_tokens = joined ? block->tokens : all.params.geometry.key_tokens;
        batch = share.batch;
        head = share.kv_head - (joined ? block->first_head : 0);
    }
};

/// The query tiles of a share. Blocks that share an item take steps in turns.
///
/// Head by head; or, in step with other blocks (WorkTileOrder), all heads of a tile. So do items that add to dq in order,
/// from the last tile to the first, which most have in common: each is a step or two behind the one before it.
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
          by_tile(turns || all.order.in_lockstep),
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

/// This thread's copies by cp.async count as one of the barrier's arrivals once they are there.
__device__ inline void arrive_after_copies(Barrier barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address) : "memory");
}

/// 4 bytes from global to shared memory, or zeros.
__device__ inline void copy_async_4(std::uint32_t shared, const float* global, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(exists ? 4 : 0)
                 : "memory");
}

__device__ inline float4 load_cluster_4(std::uint32_t address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

template <class Config>
__device__ inline void load_queries(const BackwardKernelParams& all, std::uint32_t base, const Share& share) {
    using Layout = BackwardLayout<Config>;
    const BackwardBarriers<Config> barriers{base + Layout::barriers};
    const BackwardParams& params = all.params;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto load = [&](const CUtensorMap& map, int place, int rows, int dims, Barrier barrier, int token, int head) {
        for (int d = 0; d < dims; d += 64)
            load_box(base + place + d * rows * 2, map, barrier, d, token, head, share.batch);
    };
    if (lane == 0) {
        const CUtensorMap *k = &all.k, *v = &all.v;
        int first_tile = 0, first_head = 0;
        if (all.joined.blocks) {
            await_block(all.joined, share.item.w);
            const JoinedBlock& block = all.joined.blocks[share.item.w];
            k = &block.k;
            v = &block.v;
            first_tile = block.first_tile;
            first_head = block.first_head;
        }
        const Barrier full = barriers.keys_full();
        const int token = (share.item.x - first_tile) * Config::keys, head = share.kv_head - first_head;
        full.arrive_and_expect(Layout::k_bytes + Layout::v_bytes);
        load(*k, Layout::k, Config::keys, Config::head, full, token, head);
        load(*v, Layout::v, Config::keys, Config::value, full, token, head);
    }
    __syncwarp();
    QueryTiles tiles(all, share);
    Stage<Config::q_stages> q;
    Stage<Config::dout_stages> dout;
    for (int step = 0; step < share.steps; ++step) {
        const int entry = tiles.entry(), token = (entry >> 1) * Config::rows;
        const Barrier q_full = barriers.q_full(q.index), dout_full = barriers.dout_full(dout.index);
        const std::uint32_t rows = base + Layout::rows + q.index * Layout::rows_bytes;
        barriers.q_empty(q.index).wait(q.parity ^ 1);
        if (lane == 0) {
            store_shared(rows + Layout::entry, entry);
            q_full.arrive_and_expect(Layout::q_bytes);
            load(all.q, Layout::q + q.index * Layout::q_bytes, Config::rows, Config::head, q_full, token, tiles.head);
        }
        // Rows that do not exist get zeros: p = 1 there, but q and dout are 0, so nothing comes of it.
        const Strides& strides = params.statistics_strides;
        const float2* const statistics = params.statistics + share.batch * strides.batch + tiles.head * strides.head;
        for (int row = lane; row < Config::rows; row += 32) {
            const auto* of_row = reinterpret_cast<const float*>(statistics + (token + row) * strides.token);
            const bool exists = token + row < params.geometry.query_tokens;
            copy_async_4(rows + Layout::place_of_row(row), of_row, exists);
            copy_async_4(rows + Layout::delta + Layout::place_of_row(row), of_row + 1, exists);
        }
        if (entry & 1)
            for (int row = lane; row < Config::rows; row += 32)
                device::copy_async_16(rows + Layout::bounds + row * 16, params.geometry.row_bounds + token + row, true);
        arrive_after_copies(q_full);
        q.advance();

        barriers.dout_empty(dout.index).wait(dout.parity ^ 1);
        if (lane == 0) {
            dout_full.arrive_and_expect(Layout::dout_bytes);
            load(all.dout, Layout::dout + dout.index * Layout::dout_bytes, Config::rows, Config::value, dout_full,
                 token, tiles.head);
        }
        dout.advance();
        tiles.advance();
    }
}

/// A flag counts the parts that one place of dq has taken.
__device__ inline void await_turn(const int* flag, int turn) {
    constexpr int most_polls = 1 << 28;  // minutes: only items launched earlier are waited for
    for (int polls = 0;; ++polls) {
        int taken;
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(taken) : "l"(flag) : "memory");
        if (taken == turn) break;
        if (polls == most_polls) __trap();
    }
    fence_all_for_async();  // the part before came by a bulk copy, and so does this one
}

__device__ inline void end_turn(int* flag, int turn) {
    wait_stores_done<0>();
    fence_all_for_async();
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(turn + 1) : "memory");
}

/// By one thread: adds 64 dims of rows of dq, as they lie from `place` on.
template <class Config>
__device__ inline void add_dims(const BackwardKernelParams& all, std::uint32_t place, int dim, int token, int rows,
                                int head, int batch) {
    using Part = DqPart<Config>;
    for (int i = 0; i < 2; ++i)
        for (int row = 0; row < rows; row += Part::added_rows)
            add_box(all.dq, place + i * Part::box_bytes + row * 128, dim + 32 * i, token + row, head, batch);
}

/// By one thread: adds a warpgroup's parts of dq, where they are handed over at once.
template <class Config>
__device__ inline void add_parts(const BackwardKernelParams& all, std::uint32_t base, int warpgroup, int tile, int head,
                                 int batch) {
    using Layout = BackwardLayout<Config>;
    using Part = DqPart<Config>;
    const int token = tile * Config::rows + Part::first_row(warpgroup);
    add_dims<Config>(all, base + Layout::dq_of(warpgroup), Part::first_dim(warpgroup), token, Part::rows, head, batch);
    if constexpr (Part::has_second)
        add_dims<Config>(all, base + Layout::dq_of(warpgroup) + Part::bytes, Part::second_dim(warpgroup),
                         token + Part::second_row(warpgroup), Part::second_rows, head, batch);
    commit_stores();
}

/// By one thread: adds the part that lies in a warpgroup's half of a stage, which may then be written again.
template <class Config>
__device__ inline void add_from_stage(const BackwardKernelParams& all, std::uint32_t stage, int warpgroup, int dim,
                                      int tile, int head, int batch) {
    using Part = DqPart<Config>;
    add_dims<Config>(all, stage + warpgroup * Part::bytes, dim, tile * Config::rows, Part::rows, head, batch);
    commit_stores();
    wait_stores_read<0>();
}

/// By one thread for each warpgroup: adds its parts of dq.
template <class Config>
__device__ inline void add_dq(const BackwardKernelParams& all, std::uint32_t base, const Share& share, int warpgroup) {
    using Layout = BackwardLayout<Config>;
    using Part = DqPart<Config>;
    const BackwardBarriers<Config> barriers{base + Layout::barriers};
    QueryTiles tiles(all, share);
    Stage<Config::q_stages> q;
    Stage<Config::dout_stages> dout;
    for (int step = 0; step < share.steps; ++step) {
        const int tile = tiles.entry() >> 1;
        if constexpr (Config::split_dims) {
            barriers.dq_full_in_dout(warpgroup, dout.index).wait(dout.parity);
            add_from_stage<Config>(all, base + Layout::dq_in_dout(dout.index), warpgroup, Part::first_dim(warpgroup),
                                   tile, tiles.head, share.batch);
            barriers.dout_empty(dout.index).arrive();
            barriers.dq_full(warpgroup, q.index).wait(q.parity);
            add_from_stage<Config>(all, base + Layout::dq_in_q(q.index), warpgroup, Part::second_dim(warpgroup), tile,
                                   tiles.head, share.batch);
            barriers.q_empty(q.index).arrive();
        } else {
            barriers.dq_full(warpgroup, q.index).wait(q.parity);
            add_parts<Config>(all, base, warpgroup, tile, tiles.head, share.batch);
            wait_stores_read<0>();
            barriers.dq_empty(warpgroup).arrive();
        }
        q.advance();
        dout.advance();
        tiles.advance();
    }
}

/// Warps that add dq in order.
template <class Config>
constexpr int adders_in_order = Config::q_stages;

/// By one thread of each of those warps, which take steps in turns: adds the parts of both warpgroups. One alone would
/// need longer than a step for it: to wait for the turn, to add, to wait until the sum is in memory, to tell.
template <class Config>
__device__ inline void add_dq_in_order(const BackwardKernelParams& all, std::uint32_t base, const Share& share,
                                       int adder) {
    using Layout = BackwardLayout<Config>;
    using Part = DqPart<Config>;
    constexpr int adders = adders_in_order<Config>;
    static_assert(adders <= 3 && (!Config::split_dims || Config::dout_stages == adders));
    const BackwardBarriers<Config> barriers{base + Layout::barriers};
    const int query_tiles = (all.params.geometry.query_tokens + Config::rows - 1) / Config::rows;
    QueryTiles tiles(all, share);
    for (int i = 0; i < adder; ++i) tiles.advance();
    std::uint32_t parity = 0;
    for (int step = adder; step < share.steps; step += adders) {
        const int tile = tiles.entry() >> 1, turn = tiles.turn();
        int* const flag =
            all.flags +
            (static_cast<std::int64_t>(share.batch) * all.params.geometry.query_heads + tiles.head) * query_tiles +
            tile;
        await_turn(flag, turn);
        if constexpr (Config::split_dims) {
            for (int i = 0; i < 2; ++i) {
                barriers.dq_full_in_dout(i, adder).wait(parity);
                add_from_stage<Config>(all, base + Layout::dq_in_dout(adder), i, Part::first_dim(i), tile, tiles.head,
                                       share.batch);
                barriers.dout_empty(adder).arrive();
            }
            for (int i = 0; i < 2; ++i) {
                barriers.dq_full(i, adder).wait(parity);
                add_from_stage<Config>(all, base + Layout::dq_in_q(adder), i, Part::second_dim(i), tile, tiles.head,
                                       share.batch);
                barriers.q_empty(adder).arrive();
            }
        } else {
            for (int i = 0; i < 2; ++i) {
                barriers.dq_full(i, adder).wait(parity);
                add_parts<Config>(all, base, i, tile, tiles.head, share.batch);
            }
            wait_stores_read<1>();
            barriers.dq_empty(0).arrive();
            wait_stores_read<0>();
            barriers.dq_empty(1).arrive();
        }
        end_turn(flag, turn);
        parity ^= 1;
        for (int i = 0; i < adders; ++i) tiles.advance();
    }
}

/// Without an answer: no register waits for it.
__device__ inline void add_pair(float2* to, float2 x) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}

/// What belongs to element i, of columns 2 t and 2 t + 1 of eight after eight: `x` is of two eights.
__device__ inline float of_element(const float4& x, int i) {
    return i % 8 < 4 ? (i % 2 ? x.y : x.x) : (i % 2 ? x.w : x.z);
}

/// One warpgroup's half of the keys, or of the dims: its dk and dv, and its part of dq.
template <class T, class Config, bool rewrite>
__device__ inline void compute(const BackwardKernelParams& all, std::uint32_t base, const Share& share, int warpgroup) {
    const BackwardParams& params = all.params;
    using Layout = BackwardLayout<Config>;
    using Part = DqPart<Config>;
    constexpr int rows = Config::rows, keys = Config::keys, head = Config::head, value = Config::value;
    constexpr bool late_dq = !Config::split_dims;                          // issued in the step that follows
    constexpr int s_count = rows / 2, parts = Config::split_dims ? 2 : 1;  // of the dims of dk and dv
    const int first_key = Config::split_dims ? 0 : 64 * warpgroup, half = Config::split_dims ? warpgroup : 0;
    const BackwardBarriers<Config> barriers{base + Layout::barriers};
    const Geometry& geometry = params.geometry;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    int lane;  // kept in a register: reading it anew in every step took 6 % of the step
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    const int g = lane / 4, t = lane % 4;
    const auto arrive = [&](Barrier barrier) {
        __syncwarp();
        if (lane == 0) barrier.arrive();
    };
    const int own_key = share.item.x * keys + first_key + warp * 16 + g;  // and own_key + 8

    float dk[head / 2 / parts], dv[value / 2 / parts];
#pragma unroll
    for (float& x : dk) x = 0;
#pragma unroll
    for (float& x : dv) x = 0;

    const int steps = share.steps;
    if (steps > 0) {
        pin(dk);  // or the zeros come behind the first product, which ptxas then serialises
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
        // This thread's place of dq^T's element 0 of each 8 queries; 1 is a row on, 2 and 3 are 8 dims on: two chunks.
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
            multiply<T, keys / 16, keys, keys>(dq, dims_of_k, ds.after_columns(first_row), false);
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
        barriers.keys_full().wait(0);

        // s, dp and dq are written by products alone: ptxas serialises products whose results other instructions touch.
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const std::uint32_t q_tile = base + Layout::q + q.index * Layout::q_bytes;
            const std::uint32_t dout_tile = base + Layout::dout + dout.index * Layout::dout_bytes;
            const std::uint32_t row_data = base + Layout::rows + q.index * Layout::rows_bytes;
            const std::uint32_t statistics = row_data + t * Layout::thread_rows_bytes;

            float s[s_count], dp[s_count], dq[Part::count];
            [[maybe_unused]] float second_dq[Part::has_second ? Part::second_count : 1];
            barriers.q_full(q.index).wait(q.parity);
            // lse, then delta. Before S: it and dP take all that shared memory gives.
            float4 of_row[rows / 16];
#pragma unroll
            for (int n = 0; n < rows / 16; ++n) of_row[n] = load_shared_4(statistics + n * 16);
            fence_products();
            multiply<T, head / 16, keys, rows>(s, own_k, Operand<Order::rows_outer>(q_tile, rows), false);
            commit_products();
            const auto issue_dp = [&] {
                barriers.dout_full(dout.index).wait(dout.parity);
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
                const float lse = of_element(of_row[i / 8], i);
                p[i] = exp2_fast(rewrite ? score_of(params.rule, s[i]) - lse : fmaf(s[i], params.rule.factor, -lse));
            }
            if (load_shared_int(row_data + Layout::entry) & 1) {
                const int2 positions =
                    make_int2(__ldg(geometry.key_positions + own_key), __ldg(geometry.key_positions + own_key + 8));
                // As bits first, in a loop, since so many bounds have no place in registers beside the accumulators.
                std::uint32_t visible = 0;
#pragma unroll 1
                for (int n = 0; n < rows / 8; ++n)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const int4 bounds = load_shared_int4(row_data + Layout::bounds + (8 * n + 2 * t + c) * 16);
                        visible |= (sees(bounds, positions.x) ? 1u << c : 0) << 4 * n |
                                   (sees(bounds, positions.y) ? 4u << c : 0) << 4 * n;
                    }
#pragma unroll
                for (int i = 0; i < s_count; ++i)
                    if (!(visible >> i & 1)) p[i] = 0;
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
                for (int c = 0; c < 4; ++c) p_operand[i][c] = pack<T>(p[8 * i + 2 * c], p[8 * i + 2 * c + 1]);
            fence_products();
            multiply<T, rows>(dv, p_operand,
                              Operand<Order::rows_summed>(dout_tile, rows).after_stretches(half * value / 128, rows),
                              true);
            commit_products();
#pragma unroll
            for (int n = 0; n < rows / 16; ++n) of_row[n] = load_shared_4(statistics + Layout::delta + n * 16);
            if constexpr (Config::early_dv) {
                wait_products<1>();  // dP
                pin(dp);
            }
            if constexpr (Config::split_dims) arrive(barriers.scores_ended());
#pragma unroll
            for (int i = 0; i < s_count; ++i) {
                float x = p[i] * (dp[i] - of_element(of_row[i / 8], i));
                // The score again, from p: where p is 0, so is ds.
                if (rewrite && params.rule.cap_log2 > 0 && p[i] > 0) {
                    const float4 lse = load_shared_4(statistics + i / 8 * 16);
                    x *= slope_of(params.rule, __log2f(p[i]) + of_element(lse, i));
                }
                p[i] = x;
            }
#pragma unroll
            for (int i = 0; i < rows / 16; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) ds_operand[i][c] = pack<T>(p[8 * i + 2 * c], p[8 * i + 2 * c + 1]);
                store_matrices((ds_place + tile_of_ds(step)) ^ (i * 32), ds_operand[i]);
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
                arrive(barriers.dout_empty(dout.index));
            } else {
                barriers.ds_full(warpgroup).wait(step & 1);
                fence_products();
                issue_first_dq(dq, step);
                commit_products();
                issue_dk();
                wait_products<1>();  // all but dK
                pin(dq);
                barriers.scores_ended().wait(step & 1);  // the other warpgroup's too: nobody reads all dims any more
                store_dq(dq, Layout::dq_in_dout(dout.index));
                hand_over_dq(barriers.dq_full_in_dout(warpgroup, dout.index));
                fence_products();
                issue_second_dq(second_dq, step);
                commit_products();
                wait_products<0>();
                pin(second_dq);
                store_dq(second_dq, Layout::dq_in_q(q.index));
                hand_over_dq(barriers.dq_full(warpgroup, q.index));
            }
            last_q = q.index;
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

    const GradientTarget target(all, load_share(base + Layout::share), keys);
    // Dims are multiples of 8, so columns exist or not by eights.
    const auto write = [&](const Elements& result, const auto& sums, int dim, float factor) {
        constexpr int eights = static_cast<int>(sizeof(sums) / sizeof(float)) / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int key = target.first_key + first_key + warp * 16 + g + 8 * r;
            if (key >= target.key_tokens) continue;
            const int first_dim = half * 2 * static_cast<int>(sizeof(sums) / sizeof(float));
            const int dims = dim - first_dim;
            const auto index = device::row_index(result.strides, target.batch, key, target.head) + first_dim + 2 * t;
            const auto pair = [&](int n) {
                return make_float2(sums[4 * n + 2 * r] * factor, sums[4 * n + 2 * r + 1] * factor);
            };
            const auto for_each_pair = [&](auto store) {
#pragma unroll
                for (int n = 0; n < eights; ++n)
                    if (8 * n < dims) store(4 * n, pair(n));
            };
            if (result.dtype == DType::fp32) {
                auto* const to = reinterpret_cast<float2*>(static_cast<float*>(result.data) + index);
                target.adds ? for_each_pair([&](int i, float2 x) { add_pair(to + i, x); })
                            : for_each_pair([&](int i, float2 x) { to[i] = x; });
            } else {  // of the inputs' type
                auto* const to = reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(result.data) + index);
                target.adds ? for_each_pair([&](int i, float2 x) {
                    const float2 there = unpack<T>(to[i]);
                    to[i] = pack<T>(there.x + x.x, there.y + x.y);
                })
                            : for_each_pair([&](int i, float2 x) { to[i] = pack<T>(x.x, x.y); });
            }
        }
    };
    const int blocks = blocks_of_cluster(), block = block_of_cluster();
    const auto await_target = [&] {
        if (all.joined.blocks) await_gradient(all.joined, target.joined_block);
    };
    if (blocks == 1) {
        await_target();
        write(target.dk, dk, params.q.dim, params.scale);
        write(target.dv, dv, params.v.dim, 1.0f);
        return;
    }
    // Blocks share an item. Of each pair the even one takes dk of both and the odd one dv; those with dk then add up
    // pair by pair, and so do those with dv, until the first two blocks have all. Parts are handed over thread by
    // thread, where the tiles were.
    static_assert(Layout::ds >= keys * 4 * (head > value ? head : value));
    const std::uint32_t handed = base + (static_cast<std::uint32_t>(threadIdx.x) - 128) * 16;
    constexpr int row_bytes = computing_threads * 16;
    const auto give = [&](const auto& sums) {
        sync_named(1, computing_threads);  // nobody reads the tiles any more
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(sums) / 16); ++i)
            store_shared_4(handed + i * row_bytes,
                           make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    };
    const auto take = [&](auto& sums, int from) {
        const std::uint32_t other = shared_of_block(handed, from);
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(sums) / 16); ++i) {
            const float4 x = load_cluster_4(other + i * row_bytes);
            sums[4 * i] += x.x;
            sums[4 * i + 1] += x.y;
            sums[4 * i + 2] += x.z;
            sums[4 * i + 3] += x.w;
        }
    };
    const auto add_up = [&](const auto& given, auto& kept) {
        give(given);
        sync_cluster();
        take(kept, block ^ 1);
        for (int distance = 2; distance < blocks; distance *= 2) {
            sync_cluster();  // what was handed over has been read
            if (block % (2 * distance) / 2 == distance / 2) give(kept);
            sync_cluster();
            if (block % (2 * distance) < 2) take(kept, block + distance);
        }
    };
    if (block % 2 == 0) {
        add_up(dv, dk);
        if (block == 0) {
            await_target();
            write(target.dk, dk, params.q.dim, params.scale);
        }
    } else {
        add_up(dk, dv);
        if (block == 1) {
            await_target();
            write(target.dv, dv, params.v.dim, 1.0f);
        }
    }
    sync_cluster();  // the others have read this block's part
}

/// By the computing threads: this thread block's part of dk and dv is in memory.
__device__ inline void tell_end(const BackwardKernelParams& all, const Share& share) {
    if (!all.joined.blocks) return;
    const JoinedBlock& block = all.joined.blocks[share.item.w];
    if (!block.ended) return;
    sync_named(1, computing_threads);
    if (threadIdx.x != backward_threads - computing_threads) return;
    __threadfence_system();
    atomicAdd(block.ended, 1u);
}

template <class T, class Config, bool rewrite>
__global__ void __launch_bounds__(backward_threads, 1)
    backward_kernel(const __grid_constant__ BackwardKernelParams all) {
    using Layout = BackwardLayout<Config>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);

    if (threadIdx.x == 0) {
        BackwardBarriers<Config>{base + Layout::barriers}.initialise();
        fence_barrier_initialisation();
        *reinterpret_cast<Share*>(shared + Layout::share) = share_of_block(all);
    }
    __syncthreads();

    if (warp < 4) {
        shrink_registers<24>();
        const Share share = load_share(base + Layout::share);
        if (share.steps == 0) return;
        if (warp == 0)
            load_queries<Config>(all, base, share);
        else if (threadIdx.x % 32 != 0)
            return;
        else if (!all.turns && warp <= 2)
            add_dq<Config>(all, base, share, warp - 1);
        else if (all.turns && warp <= adders_in_order<Config>)
            add_dq_in_order<Config>(all, base, share, warp - 1);
    } else {
        grow_registers<240>();
        compute<T, Config, rewrite>(all, base, load_share(base + Layout::share), warp / 4 - 1);
        tell_end(all, load_share(base + Layout::share));
    }
}

template <class Config>
BackwardKernelParams kernel_params(const BackwardLaunch& launch, DType dtype) {
    const BackwardParams& params = launch.params;
    const Geometry& g = params.geometry;
    const int kv_heads = g.query_heads / g.group;
    const auto map = [&](const Input& input, int tokens, int heads, int box_tokens) {
        return make_tensor_map({input.data, dtype, input.strides}, {g.batch, tokens, heads, input.dim}, box_tokens);
    };
    BackwardKernelParams all{
        .q = map(params.q, g.query_tokens, g.query_heads, Config::rows),
        .k = {},
        .v = {},
        .dout = map(params.dout, g.query_tokens, g.query_heads, Config::rows),
        .dq = make_tensor_map({params.dq.data, DType::fp32, params.dq.strides},
                              {g.batch, g.query_tokens, g.query_heads, params.q.dim}, DqPart<Config>::added_rows),
        .params = params,
        .joined = launch.joined,
        .order = launch.order,
        .turns = launch.turns,
        .flags = nullptr};
    if (launch.joined.blocks) return all;
    all.k = map(params.k, g.key_tokens, kv_heads, Config::keys);
    all.v = map(params.v, g.key_tokens, kv_heads, Config::keys);
    return all;
}

template <class T, class Config, bool rewrite>
void enqueue_backward(const BackwardKernelParams& params, int blocks_per_item, cudaStream_t stream) {
    const Geometry& g = params.params.geometry;
    const int heads = params.joined.blocks ? params.joined.heads : g.query_heads / g.group;
    launch_in_clusters(backward_kernel<T, Config, rewrite>, "backward kernel for sm_90a",
                       heads * g.batch * params.params.work.count, blocks_per_item, backward_threads,
                       BackwardLayout<Config>::bytes, params, stream);
}

template <class Config>
void launch_backward_with(const BackwardLaunch& launch, DType dtype, cudaStream_t stream) {
    if (launch.params.work.count == 0) return;
    BackwardKernelParams params = kernel_params<Config>(launch, dtype);
    const auto of_type = [&]<class T>() {
        if (launch.params.rule.rewrite)
            enqueue_backward<T, Config, true>(params, launch.blocks_per_item, stream);
        else
            enqueue_backward<T, Config, false>(params, launch.blocks_per_item, stream);
    };
    const auto enqueue = [&] {
        if (dtype == DType::bf16)
            of_type.template operator()<__nv_bfloat16>();
        else
            of_type.template operator()<__half>();
    };
    if (!launch.turns) return enqueue();
    const Geometry& g = launch.params.geometry;
    const auto flags = static_cast<std::size_t>(g.batch) * static_cast<std::size_t>(g.query_heads) *
                       static_cast<std::size_t>((g.query_tokens + Config::rows - 1) / Config::rows);
    RINGLAB_CUDA(cudaMallocAsync(reinterpret_cast<void**>(&params.flags), flags * sizeof(int), stream));
    RINGLAB_CUDA(cudaMemsetAsync(params.flags, 0, flags * sizeof(int), stream));
    enqueue();
    RINGLAB_CUDA(cudaFreeAsync(params.flags, stream));
}

template <DimClass dims>
void launch_backward(const BackwardLaunch& launch, DType dtype, cudaStream_t stream) {
    launch_backward_with<BackwardConfig<dims>>(launch, dtype, stream);
}

}  // namespace ringlab::gpu::hopper
