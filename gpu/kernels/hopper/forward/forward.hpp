#pragma once

#include "gpu/kernels/hopper/units/joined.hpp"
#include "gpu/kernels/hopper/units/unit_order.hpp"

#include <cuda.h>

namespace ringlab::gpu {
struct ForwardArgs;
class JoinedWork;
class WorkList;
}  // namespace ringlab::gpu

namespace ringlab::gpu::hopper {

/// One launch of the forward kernel: what ForwardParams says, and where the copy engine finds it.
struct ForwardLaunch {
    CUtensorMap q, k, v;  // boxes of a tile's rows or keys
    Joined joined;        // of several blocks: then k and v are theirs
    CUtensorMap carry;    // if prefetch_carry
    ForwardParams params;
    std::uint32_t* counter;  // of units given out; 0, and 0 again after the launch
    int blocks;              // that make a pair, 2, or 1: each block by itself
    int units;               // items x heads x batch, or pairs of heads
    WorkTileOrder order;         // but for joined launches
    bool prefetch_carry;
};

/// From arguments that attend_forward() has checked. Throws Error if data or strides are not multiples of 16 bytes.
ForwardLaunch make_forward_launch(const ForwardArgs& args, const WorkList& work, const ForwardParams& params);
ForwardLaunch make_forward_launch(const ForwardArgs& args, const JoinedWork& work, const ForwardParams& params);

template <DimClass dims>
void launch_forward(const ForwardLaunch& launch, DType dtype, cudaStream_t stream);

}  // namespace ringlab::gpu::hopper
