#pragma once

#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/hopper/work_tiles/fused_launch.hpp"
#include "layouts/layouts/launch_order.hpp"

#include <cuda.h>

namespace ringlab::gpu::hopper {

/// One launch of the forward kernel: ForwardParams, and tensor maps from which bulk copies load them.
struct ForwardLaunch {
    CUtensorMap q, k, v;  // boxes of a tile's rows or keys
    FusedLaunch fused;    // blocks of a fused launch, with their own k and v
    CUtensorMap carry;    // unless params.first
    ForwardParams params;
    std::uint32_t* counter;        // next work tile; 0 before and after the launch
    int work_tiles;                // query tiles x heads x batch
    layouts::WorkTileOrder order;  // not used by fused launches
};

/// `Launch`: ForwardLaunch or Dropping<ForwardLaunch>.
template <DimClass dims, class Launch>
void launch_forward(const Launch& launch, DType dtype, cudaStream_t stream);

}  // namespace ringlab::gpu::hopper
