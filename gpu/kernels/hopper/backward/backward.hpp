#pragma once

#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/hopper/work_tiles/fused_launch.hpp"
#include "layouts/layouts/launch_order.hpp"

namespace ringlab::gpu::hopper {

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
