#pragma once

#include "gpu/elements/views.hpp"
#include "layouts/problem/rotary.hpp"

#include <cuda_runtime_api.h>

namespace ringlab::gpu {

/// Rows of Q or K, or of gradients by them.
struct RotateArgs {
    Extent extent = {};                       ///< dim is that of a head, at most 256
    View destination = {};                    ///< fp32, bf16 or fp16
    ConstView source = {};                    ///< the same memory as the destination, or none of it
    const std::int32_t* positions = nullptr;  ///< of each token, in device memory
    const layouts::RotaryTable& table;
    bool back = false;  ///< the transpose: what makes gradients by rotated rows gradients by rows that are not
};

/// Rotary embedding: pairs (x, y) of dims become a (x cos t - y sin t, x sin t + y cos t), t = position * frequency, a
/// the amplitude; all in fp64, rounded once to the destination's type of 16 bits, so as the reference does. Dims
/// that are not rotated are copied. Enqueues on `stream` of the current device.
void rotate(const RotateArgs& args, cudaStream_t stream);

}  // namespace ringlab::gpu
