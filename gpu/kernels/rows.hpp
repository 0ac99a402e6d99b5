#pragma once

#include "gpu/kernels/attention.hpp"
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

struct AddSinksArgs {
    Extent extent = {};            ///< of o: dim is value_dim
    View o = {};                   ///< normalised over keys: updated
    View o_rounded = {};           ///< the same in a second type, if its data is not null: overwritten
    RowView lse = {};              ///< natural logarithm: updated
    const float* sinks = nullptr;  ///< by head, in device memory
};

/// Learned sink logits s, by head, behind the last merge: lse' = log(exp(lse) + exp(s)), o' = o exp(lse - lse'). A row
/// that saw nothing gets lse' = s and keeps o = 0. Enqueues on `stream` of the current device.
void add_sinks(const AddSinksArgs& args, cudaStream_t stream);

struct SinkGradientArgs {
    std::int64_t batch = 0, tokens = 0, heads = 0;
    Statistics statistics = {};    ///< from prepare_backward, with lse'
    const float* sinks = nullptr;  ///< by head, in device memory
    float* gradient = nullptr;     ///< likewise: overwritten
};

/// ds = -sum over rows of exp(s - lse') delta, always in the same order. Enqueues on `stream` of the current device.
void sink_gradient(const SinkGradientArgs& args, cudaStream_t stream);

}  // namespace ringlab::gpu
