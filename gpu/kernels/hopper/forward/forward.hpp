#pragma once

#include "gpu/kernels/common/tile_config.hpp"
#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/hopper/common/fused_launch.hpp"
#include "layouts/layouts/launch_order.hpp"

#include <cuda.h>

namespace ringlab::gpu::hopper {

// A thread block is one producer warpgroup and `consumers` warpgroups of 64 query rows each. Shared memory holds
// `q_stages` of Q, and `stages` of K and V; registers per thread: O value / 2, scores keys / 2, their 16-bit form keys
// / 4.
template <DimClass C>
struct ForwardConfig : Dims<C> {
    static constexpr int consumers = 2, keys = 128, stages = 2;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = C == DimClass::d128 ? 2 : 1;
};
// Exponentials cost as much as products here: three warpgroups keep both busy.
template <>
struct ForwardConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int consumers = 3, keys = 128, stages = 2;
    static constexpr int producer_registers = 32, consumer_registers = 160;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = 2;
};
template <>
struct ForwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int consumers = 2, keys = 80, stages = 2;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = 1;
};

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
