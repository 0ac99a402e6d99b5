#pragma once

#include "gpu/kernels/hopper/backward/backward_shared.cuh"
#include "gpu/kernels/hopper/common/bulk_copy.cuh"

// Warps of the third warpgroup of the backward kernel that add the parts of dQ to global memory: in any order, or in a
// fixed order that semaphores give (deterministic dQ).

namespace ringlab::gpu::hopper {

/// Waits for a semaphore: `flag` counts the work tiles that have added to this tile of dq, and this one is number
/// `turn`. It waits only for work tiles that were launched earlier, whose own waits for peers are limited.
__device__ inline void await_turn(const int* flag, int turn) {
    int taken;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(taken) : "l"(flag) : "memory");
    } while (taken != turn);
    fence_all_for_async();  // the part before was added by a bulk copy, and so is this one
}

__device__ inline void end_turn(int* flag, int turn) {
    wait_stores_done<0>();
    fence_all_for_async();
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(turn + 1) : "memory");
}

/// Adds 64 dims of some rows to dq, from shared memory at `place`. Called by one thread.
template <class Config>
__device__ inline void add_dims(const BackwardKernelParams& all, std::uint32_t place, int dim, int token, int rows,
                                int head, int batch) {
    using Part = DqPart<Config>;
    for (int i = 0; i < 2; ++i)
        for (int row = 0; row < rows; row += Part::added_rows)
            add_box(all.dq, place + i * Part::box_bytes + row * 128, dim + 32 * i, token + row, head, batch);
}

/// Adds all parts of a warpgroup to dq, if dims are not split. Called by one thread.
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

/// Adds the part that lies in a warpgroup's half of a stage to dq. The stage may be overwritten afterwards. Called by
/// one thread.
template <class Config>
__device__ inline void add_from_stage(const BackwardKernelParams& all, std::uint32_t stage, int warpgroup, int dim,
                                      int tile, int head, int batch) {
    using Part = DqPart<Config>;
    add_dims<Config>(all, stage + warpgroup * Part::bytes, dim, tile * Config::rows, Part::rows, head, batch);
    commit_stores();
    wait_stores_read<0>();
}

/// Adds the parts of a warpgroup to dq, step by step. Called by one thread for each warpgroup.
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
            barriers.dq_full_in_dout(warpgroup, dout.index()).wait(dout.parity());
            add_from_stage<Config>(all, base + Layout::dq_in_dout(dout.index()), warpgroup, Part::first_dim(warpgroup),
                                   tile, tiles.head, share.batch);
            barriers.dout_empty(dout.index()).arrive();
            barriers.dq_full(warpgroup, q.index()).wait(q.parity());
            add_from_stage<Config>(all, base + Layout::dq_in_q(q.index()), warpgroup, Part::second_dim(warpgroup), tile,
                                   tiles.head, share.batch);
            barriers.q_empty(q.index()).arrive();
        } else {
            barriers.dq_full(warpgroup, q.index()).wait(q.parity());
            add_parts<Config>(all, base, warpgroup, tile, tiles.head, share.batch);
            wait_stores_read<0>();
            barriers.dq_empty(warpgroup).arrive();
        }
        q.advance();
        dout.advance();
        tiles.advance();
    }
}

/// Number of warps that add to dq in a fixed order.
template <class Config>
constexpr int adders_in_order = Config::q_stages;

/// Deterministic: adds the parts of both warpgroups. Called by one thread of each of those warps, which take steps
/// alternately, because one alone would need longer than a step to wait for the semaphore, add, wait until the sum is
/// in memory, and signal.
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

}  // namespace ringlab::gpu::hopper
