#pragma once

#include "gpu/elements/views.hpp"
#include "layouts/problem/rotary.hpp"

#include <cuda_runtime_api.h>

namespace ringlab::gpu {

/// Rows of Q or K, or of their gradients.
struct RotateArgs {
    Extent extent = {};     ///< dim is that of a head, at most 256
    View destination = {};  ///< fp32, bf16 or fp16
    ConstView source = {};  ///< the same memory as the destination, or memory that does not overlap it
    const std::int32_t* positions = nullptr;  ///< of each token, in device memory
    const layouts::RotaryTable& table;
    bool back = false;  ///< apply the transpose, which turns gradients of rotated rows into gradients of unrotated rows
};

/// Rotary embedding. A pair (x, y) of dims becomes a (x cos t - y sin t, x sin t + y cos t) with t = position *
/// frequency and the amplitude a. All in fp64, rounded once to the destination's 16-bit type, as in the reference. Dims
/// that are not rotated are copied. Enqueues on `stream` of the current device.
void rotate(const RotateArgs& args, cudaStream_t stream);

}  // namespace ringlab::gpu
