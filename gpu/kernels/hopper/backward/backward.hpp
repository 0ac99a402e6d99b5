#pragma once

#include "gpu/kernels/common/tile_config.hpp"
#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/hopper/common/fused_launch.hpp"
#include "layouts/layouts/launch_order.hpp"

namespace ringlab::gpu::hopper {

/// A thread block stays on 128 keys, 64 for each of its two computing warpgroups. Registers per thread: dK and dV take
/// (head + value) / 2, S and dP rows / 2 each, P and dS rounded rows / 4 each. early_dv: dV is issued before dP is
/// waited for, where there are registers for that. split_dims: dK and dV of 64 keys alone are too many registers, so a
/// block stays on 64 keys, of which both warpgroups compute S and dP, and each half of the dims of dK, dV and dQ.
/// eights_of_mask: eights of rows whose bounds are tested in a turn of the loop over a partial tile.
template <DimClass>
struct BackwardConfig;
template <>
struct BackwardConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int rows = 128, keys = 128, q_stages = 3, dout_stages = 2, eights_of_mask = 8;
    static constexpr bool early_dv = false, split_dims = false;
};
template <>
struct BackwardConfig<DimClass::d128> : Dims<DimClass::d128> {
    static constexpr int rows = 64, keys = 128, q_stages = 3, dout_stages = 2, eights_of_mask = 4;
    static constexpr bool early_dv = true, split_dims = false;
};
template <>
struct BackwardConfig<DimClass::d192_128> : Dims<DimClass::d192_128> {
    static constexpr int rows = 32, keys = 128, q_stages = 3, dout_stages = 3, eights_of_mask = 1;
    static constexpr bool early_dv = false, split_dims = false;
};
template <>
struct BackwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int rows = 64, keys = 64, q_stages = 2, dout_stages = 2, eights_of_mask = 1;
    static constexpr bool early_dv = true, split_dims = true;
};

struct BackwardLaunch {
    BackwardParams params;
    FusedLaunch fused;             // blocks of a fused launch, with their own maps, dk and dv
    int blocks_per_item;           // thread blocks that share a work tile: 1, 2, 4 or 8
    layouts::WorkTileOrder order;  // order of work tiles and kv heads
    const int* turns;              // deterministic dq: TileList::device_semaphore_values(); otherwise null
    int* semaphores;               // deterministic dq: BackwardArgs::semaphores
};

/// Launches the kernel: dk, dv, and dq by additions, which have a fixed order if there are `turns`. It does the work of
/// the portable launch_backward and launch_query_gradient together. `Launch`: BackwardLaunch or
/// Dropping<BackwardLaunch>. Throws Error if a bulk copy cannot reach a tensor.
template <DimClass dims, class Launch>
void launch_backward(const Launch& launch, DType dtype, cudaStream_t stream);

}  // namespace ringlab::gpu::hopper
