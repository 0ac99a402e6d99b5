#pragma once

#include "gpu/kernels/hopper/split_kv/split_kv.hpp"
#include "gpu/kernels/hopper/work_tiles/fused_launch.cuh"

// How the launches of a MergingLaunch's peers exchange rows and results: each stores in the memory of the other, and
// then sets a flag there. A flag has the number of the launch that set it last. Numbers only grow, so that nothing is
// reset.
//
// The kernels cannot wait for each other in a circle. A launch sends its rows before it waits for anything. Then come
// the thread blocks that attend to rows of other ranks, which wait for those messages alone, and last the blocks of the
// own rows, which wait for the peers' blocks of the former kind. (Blocks begin in the order of their numbers.)
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

/// Sets a flag in a peer's memory after what all threads of this block have stored there before the last barrier. One
/// thread calls it.
__device__ inline void tell_peer(std::uint32_t* flag, std::uint32_t number) {
    __threadfence_system();
    store_released(flag, number);
}

/// Sends the rank's own rows: message m by thread block m, or by block m modulo the number of blocks.
__device__ inline void send_rows(const MergingLaunch& launch) {
    for (int m = static_cast<int>(blockIdx.x); m < launch.message_count; m += static_cast<int>(gridDim.x)) {
        const auto& message = launch.messages[m];
        const std::int64_t chunks = message.bytes / 16;
        for (std::int64_t i = threadIdx.x; i < message.rows * chunks; i += blockDim.x) {
            const std::int64_t row = i / chunks, byte = i % chunks * 16;
            *reinterpret_cast<int4*>(message.to + row * message.to_pitch + byte) =
                *reinterpret_cast<const int4*>(message.from + row * message.from_pitch + byte);
        }
        __syncthreads();
        if (threadIdx.x == 0) tell_peer(message.flag, launch.number);
    }
}

/// All threads of a block wait until a peer has sent its rows.
__device__ inline void await_rows(const MergingLaunch& launch, int other) {
    if (threadIdx.x == 0) await_peer(launch, launch.others[other].rows_flag, late_rows(other));
    __syncthreads();
}

/// All threads of a block wait until all peers have sent their results of the own rows.
__device__ inline void await_results(const MergingLaunch& launch) {
    if (const int i = static_cast<int>(threadIdx.x); i < launch.result_count)
        await_peer(launch, launch.results[i].flag, late_result(i));
    __syncthreads();
}

/// Called by one thread of a row group of other rows, when all of the group's result is stored. The last row group
/// tells the owner. Every message has one flag, so the owner waits for all row groups of a peer.
__device__ inline void end_row_group(const MergingLaunch& launch, int other) {
    const auto& rows = launch.others[other];
    const auto last = static_cast<unsigned>(rows.rows.row_groups) - 1;
    __threadfence_system();
    if (atomicInc(rows.row_groups_done, last) == last) tell_peer(rows.result_flag, launch.number);
}

}  // namespace ringlab::gpu::hopper
