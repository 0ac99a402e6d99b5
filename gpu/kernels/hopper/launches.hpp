#pragma once

#include "gpu/kernels/hopper/backward/backward.hpp"
#include "gpu/kernels/hopper/forward/forward.hpp"
#include "layouts/layouts/visible_pairs.hpp"

#include <cstdint>
#include <span>

// From the arguments of attention.hpp to launches of the hopper kernels. All functions throw Error if an argument does
// not fit.

namespace ringlab::gpu {
struct AttendShape;
struct BackwardArgs;
struct ForwardArgs;
class WorkList;
}  // namespace ringlab::gpu

namespace ringlab::gpu::hopper {

class HopperFusedWork;

/// `params`: forward_params() of the same arguments.
ForwardLaunch make_forward_launch(const ForwardArgs& args, const WorkList& work, const ForwardParams& params);
ForwardLaunch make_forward_launch(const ForwardArgs& args, const HopperFusedWork& work, const ForwardParams& params);

BackwardLaunch make_backward_launch(const BackwardArgs& args, const WorkList& work);

/// gpu::backward_params() that also satisfy what the hopper kernels alone ask for.
BackwardParams hopper_backward_params(const BackwardArgs& args, const Geometry& geometry, const Items& work);

void enqueue(const ForwardLaunch& launch, const AttendShape& shape, cudaStream_t stream);
void enqueue(const BackwardLaunch& launch, const AttendShape& shape, cudaStream_t stream);

/// Thread blocks (1, 2, 4 or 8) that share a work tile of the backward kernel on the current device.
int blocks_per_work_tile(const layouts::BackwardLoad& load);

/// The row groups of a launch, and how many key tiles (entries) all of them have and the longest has.
struct RowGroupLoad {
    std::int64_t row_groups = 0, entries = 0, longest = 0;
};

/// Thread blocks per row group that make a launch shortest, of some choices (SmGroup::sms is the number of blocks), and
/// on the current device.
int blocks_per_row_group(const RowGroupLoad& load, std::span<const layouts::SmGroup> choices);
int blocks_per_row_group(const RowGroupLoad& load);

}  // namespace ringlab::gpu::hopper
