#pragma once

#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/ptx/cluster.cuh"
#include "gpu/kernels/hopper/split_kv/split_kv.hpp"
#include "gpu/kernels/hopper/work_tiles/fused_launch.cuh"

// How the launches of a MergingLaunch's peers exchange rows and results: each stores in the memory of the other, and
// then sets a flag there. A flag has the number of the launch that set it last. Numbers only grow, so that nothing is
// reset.
//
// The kernels cannot wait for each other in a circle. A launch sends its rows before it waits for anything. Then come
// the thread blocks that attend to rows of other ranks, which wait for those messages alone, then those of the own
// rows, which wait for nobody, and last the blocks that merge, which wait for the own blocks and for the peers' blocks
// of the first kind. (Blocks begin in the order of their numbers.)
//
// No slot is overwritten too early. A peer stores results of launch n when it has the rows of launch n, which the owner
// sends after its launch n - 1 has ended. The owner sends rows of launch n after it has had the peer's results of n -
// 1, which the peer sent after it had read the rows of n - 1.

namespace ringlab::gpu::hopper {

/// Waits for a flag, for a limited time. After that it reports `late` to the host and goes on, as await_flag() of fused
/// launches does. One thread calls it.
__device__ inline void await_peer(const MergingLaunch& launch, const std::uint32_t* flag, std::uint32_t late) {
    constexpr int polls_between_looks = 64;
    const std::uint64_t begin = nanoseconds();
    // "Not yet" by the sign of the difference, because numbers wrap around.
    for (int polls = 1; static_cast<std::int32_t>(load_acquired(flag) - launch.number) < 0; ++polls) {
        if (polls % polls_between_looks != 0) continue;
        if (load_acquired(launch.late) != 0) return;
        if (nanoseconds() - begin <= launch.most_nanoseconds) continue;
        store_released(launch.reported, late);
        store_released(launch.late, 1);
        return;
    }
}

/// What the host is told about peer `index` of a kind.
__device__ inline std::uint32_t late_rows(int index) { return 2 * static_cast<std::uint32_t>(index) + 1; }
__device__ inline std::uint32_t late_result(int index) { return 2 * static_cast<std::uint32_t>(index) + 2; }

/// Called by one thread of each of `count` thread blocks or row groups, when all of its threads have stored their part
/// of a message and have met at a barrier. The last of them sets the message's flag in the peer's memory. `done` is 0
/// before and after.
__device__ inline void end_part(std::uint32_t* done, std::uint32_t count, std::uint32_t* flag, std::uint32_t number) {
    if (count > 1) {
        __threadfence_system();
        if (atomicInc(done, count - 1) != count - 1) return;
    }
    store_released(flag, number);
}

/// Sends the rank's own rows. A message has as many thread blocks as it takes for `unroll` chunks of 16 bytes per
/// thread, because a copy takes about 2.7 us from load to store. They are among the first blocks of the grid, which run
/// at the same time: a later block might begin only after blocks that wait for a peer which waits for these rows.
__device__ inline void send_rows(const MergingLaunch& launch) {
    if (launch.message_count == 0) return;
    constexpr int unroll = 4, most_blocks = 56;
    const int blocks = static_cast<int>(gridDim.x), threads = static_cast<int>(blockDim.x);
    const int most_parts = max(1, min(blocks, most_blocks) / launch.message_count);
    for (int m = 0, first = 0; m < launch.message_count; ++m) {
        const auto& message = launch.messages[m];
        const int chunks = static_cast<int>(message.bytes / 16), all = static_cast<int>(message.rows) * chunks;
        const int parts = max(1, min(most_parts, (all + threads * unroll - 1) / (threads * unroll)));
        // Blocks [first, first + parts), modulo the number of blocks.
        for (int part = (static_cast<int>(blockIdx.x) - first % blocks + blocks) % blocks; part < parts;
             part += blocks) {
            const int step = parts * threads;
            for (int i = part * threads + static_cast<int>(threadIdx.x); i < all; i += unroll * step) {
                int4 some[unroll];
#pragma unroll
                for (int u = 0; u < unroll; ++u)
                    if (const int at = i + u * step; at < all)
                        some[u] = *reinterpret_cast<const int4*>(message.from + at / chunks * message.from_pitch +
                                                                 at % chunks * 16);
#pragma unroll
                for (int u = 0; u < unroll; ++u)
                    if (const int at = i + u * step; at < all)
                        *reinterpret_cast<int4*>(message.to + at / chunks * message.to_pitch + at % chunks * 16) =
                            some[u];
            }
            __syncthreads();
            if (threadIdx.x == 0)
                end_part(message.parts_done, static_cast<std::uint32_t>(parts), message.flag, launch.number);
        }
        first += parts;
    }
}

/// All threads of a block wait until a peer has sent its rows.
__device__ inline void await_rows(const MergingLaunch& launch, int other) {
    if (threadIdx.x == 0) await_peer(launch, launch.others[other].rows_flag, late_rows(other));
    __syncthreads();
}

/// All threads of a block wait until all peers have sent their results of the own rows, and the own result is there. It
/// is there in time, or a block that waits for a peer has reported it.
__device__ inline void await_results(const MergingLaunch& launch) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < launch.result_count) await_peer(launch, launch.results[i].flag, late_result(i));
    if (i == launch.result_count)
        while (static_cast<std::int32_t>(load_acquired(launch.own_flag) - launch.number) < 0 &&
               load_acquired(launch.late) == 0) {
        }
    __syncthreads();
}

/// Merges the results of peers into the own one, which the output holds, by thread block `index` of
/// launch.merging_clusters. Each warp takes rows in turn. Results are normalised: their l is 1, and their m is lse.
/// They are added in a fixed order.
__device__ inline void merge_rows(const MergingLaunch& launch, int index) {
    using namespace device;
    await_results(launch);
    constexpr float log2_e = 1.4426950408889634f;
    constexpr int most = MergingLaunch::most_peers;
    const auto& params = launch.forward;
    const int heads = params.geometry.query_heads, tokens = launch.rows.tokens;
    const int warps = static_cast<int>(blockDim.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int step = launch.merging_clusters * blocks_of_cluster() * warps;
    for (int row = index * warps + static_cast<int>(threadIdx.x) / 32; row < params.geometry.batch * tokens * heads;
         row += step) {
        const int head = row % heads, token = row / heads % tokens, batch = row / heads / tokens;
        float& lse = value_of(params.lse, batch, token, head);
        float weight[most + 1];
        weight[most] = lse * log2_e;
        float largest = weight[most];
#pragma unroll
        for (int p = 0; p < most; ++p) {
            weight[p] = p < launch.result_count ? value_of(launch.results[p].lse, batch, token, head) * log2_e
                                                : minus_infinity();
            largest = fmaxf(largest, weight[p]);
        }
        const float offset = largest == minus_infinity() ? 0.0f : largest;
        float sum = 0;
#pragma unroll
        for (int p = 0; p <= most; ++p) sum += weight[p] = exp2_fast(weight[p] - offset);
        const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
        for (int column = 2 * lane; column < params.v.dim; column += 64) {
            const int count = params.v.dim - column;
            const auto index_in = [&](const Elements& tensor) {
                return row_index(tensor.strides, batch, token, head) + column;
            };
            float2 all = load_pair(params.o, index_in(params.o), count);
            all = make_float2(all.x * weight[most], all.y * weight[most]);
#pragma unroll
            for (int p = 0; p < most; ++p) {
                if (p >= launch.result_count) break;
                const auto& o = launch.results[p].o;
                const float2 some = load_pair(o, index_in(o), count);
                all = make_float2(all.x + weight[p] * some.x, all.y + weight[p] * some.y);
            }
            for (const Elements& result : {params.o, params.o_rounded})
                if (result.data) store_pair(result, index_in(result), all.x * inverse, all.y * inverse, count);
        }
        __syncwarp();  // all lanes have read lse
        if (lane == 0) lse = natural_lse(largest, sum);
    }
}

/// Called by one thread of a row group of other rows, when all of the group's result is stored. The last row group
/// tells the owner. Every message has one flag, so the owner waits for all row groups of a peer.
__device__ inline void end_row_group(const MergingLaunch& launch, int other) {
    const auto& rows = launch.others[other];
    end_part(rows.row_groups_done, static_cast<std::uint32_t>(rows.rows.row_groups), rows.result_flag, launch.number);
}

/// The same for the own rows, for merge_rows().
__device__ inline void end_own_row_group(const MergingLaunch& launch) {
    end_part(launch.own_done, static_cast<std::uint32_t>(launch.rows.row_groups), launch.own_flag, launch.number);
}

}  // namespace ringlab::gpu::hopper
