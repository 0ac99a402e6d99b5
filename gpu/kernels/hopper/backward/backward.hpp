#pragma once

#include "gpu/kernels/hopper/units/joined.hpp"
#include "gpu/kernels/hopper/units/unit_order.hpp"

namespace ringlab::gpu::hopper {

struct BackwardLaunch {
    BackwardParams params;
    Joined joined;        // of several blocks: then maps, dk and dv are theirs
    int blocks_per_item;  // thread blocks that share an item: 1, 2, 4 or 8
    WorkTileOrder order;      // of items and kv heads
    const int* turns;     // for dq in order: TileList::device_turns(); otherwise null
};

/// As the portable launch_backward and launch_query_gradient together: dk, dv, and dq by additions, in a fixed order if
/// there are turns. Throws Error if a bulk copy cannot reach a tensor.
template <DimClass dims>
void launch_backward(const BackwardLaunch& launch, DType dtype, cudaStream_t stream);

}  // namespace ringlab::gpu::hopper
