#pragma once

#include "gpu/kernels/common/params.hpp"
#include "layouts/problem/dropout.hpp"

namespace ringlab::gpu {

/// What kernels draw by. Geometry has the positions: those of rows as the last of their bounds.
struct DropoutParams {
    layouts::DropoutDraw draw;
    float factor;    // of a p that is kept
    int first_head;  // of the problem, that the attend's head 0 is
};

/// Parameters of an attend with dropout: kernels that are made for them draw, those for the plain ones hold nothing of
/// it.
template <class Params>
struct Dropping : Params {
    DropoutParams dropout;
};

template <DimClass dims>
void launch_dropping_forward(const Dropping<ForwardParams>& params, DType dtype, cudaStream_t stream);

/// dk, dv and, unless `ordered`, dq by atomic additions; otherwise dq in order by a launch of its own.
template <DimClass dims>
void launch_dropping_backward(const Dropping<BackwardParams>& params, DType dtype, bool ordered, cudaStream_t stream);

}  // namespace ringlab::gpu
