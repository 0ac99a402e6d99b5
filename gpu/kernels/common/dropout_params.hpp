#pragma once

#include "gpu/kernels/common/params.hpp"
#include "layouts/problem/dropout.hpp"

namespace ringlab::gpu {

/// What kernels need to draw dropout. Geometry holds the positions: that of a row is the last element of its bounds.
struct DropoutParams {
    layouts::DropoutDraw draw;
    float factor;    // of each p that is kept
    int first_head;  // the problem's number of the attend's head 0
};

/// Parameters of an attend with dropout. Kernels that are compiled for plain parameters have no code for dropout.
template <class Params>
struct Dropping : Params {
    DropoutParams dropout;
};

/// Parameters of kernels that drop p out.
template <class Params>
concept DropsOut = requires(const Params& params) {
    params.dropout;
};

}  // namespace ringlab::gpu
