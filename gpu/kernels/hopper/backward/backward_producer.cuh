#pragma once

#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/backward/backward_shared.cuh"
#include "gpu/kernels/hopper/common/bulk_copy.cuh"

// Warp 0 of the backward kernel: loads K and V once, then Q, dO and the rows' statistics step by step.

namespace ringlab::gpu::hopper {

/// This thread's copies by cp.async count as one of the barrier's arrivals once they are there.
__device__ inline void arrive_after_copies(Barrier barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address) : "memory");
}

/// 4 bytes from global to shared memory, or zeros.
__device__ inline void copy_async_4(std::uint32_t shared, const float* global, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(exists ? 4 : 0)
                 : "memory");
}

template <class Config, bool drops>
__device__ inline void load_queries(const BackwardKernelParams& all, std::uint32_t base, const Share& share) {
    using Layout = BackwardLayout<Config>;
    const BackwardBarriers<Config> barriers{base + Layout::barriers};
    const BackwardParams& params = all.params;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto load = [&](const CUtensorMap& map, int place, int rows, int dims, Barrier barrier, int token, int head) {
        for (int d = 0; d < dims; d += 64)
            load_box(base + place + d * rows * 2, map, barrier, d, token, head, share.batch);
    };
    QueryTiles tiles(all, share);
    int entry = tiles.entry();  // asked for before K and V are
    if (lane == 0) {
        const CUtensorMap *k = &all.k, *v = &all.v;
        int first_tile = 0, first_head = 0;
        if (all.fused.blocks) {
            await_block(all.fused, share.item.w);
            const FusedLaunchBlock& block = all.fused.blocks[share.item.w];
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
    Stage<Config::q_stages> q;
    Stage<Config::dout_stages> dout;
    for (int step = 0; step < share.steps; ++step) {
        if (step > 0) entry = tiles.entry();
        const int token = (entry >> 1) * Config::rows;
        const Barrier q_full = barriers.q_full(q.index()), dout_full = barriers.dout_full(dout.index());
        const std::uint32_t rows = base + Layout::rows + q.index() * Layout::rows_bytes;
        barriers.q_empty(q.index()).wait(q.parity() ^ 1);
        if (lane == 0) {
            store_shared(rows + Layout::entry, entry);
            if constexpr (drops) store_shared(rows + Layout::query_head, tiles.head);
            q_full.arrive_and_expect(Layout::q_bytes);
            load(all.q, Layout::q + q.index() * Layout::q_bytes, Config::rows, Config::head, q_full, token, tiles.head);
        }
        // Rows that do not exist get zeros: p = 1 there, but q and dout are 0, so nothing comes of it.
        const Strides& strides = params.statistics_strides;
        const float2* const statistics = params.statistics + share.batch * strides.batch + tiles.head * strides.head;
        for (int row = lane; row < Config::rows; row += 32) {
            const auto* of_row = reinterpret_cast<const float*>(statistics + (token + row) * strides.token);
            const bool exists = token + row < params.geometry.query_tokens;
            copy_async_4(rows + row * 4, of_row, exists);
            copy_async_4(rows + Layout::delta + row * 4, of_row + 1, exists);
        }
        if (drops || entry & 1)
            for (int row = lane; row < Config::rows; row += 32)
                device::copy_async_16(rows + Layout::bounds + row * 16, params.geometry.row_bounds + token + row, true);
        arrive_after_copies(q_full);
        q.advance();

        barriers.dout_empty(dout.index()).wait(dout.parity() ^ 1);
        if (lane == 0) {
            dout_full.arrive_and_expect(Layout::dout_bytes);
            load(all.dout, Layout::dout + dout.index() * Layout::dout_bytes, Config::rows, Config::value, dout_full,
                 token, tiles.head);
        }
        dout.advance();
        tiles.advance();
    }
}

}  // namespace ringlab::gpu::hopper
