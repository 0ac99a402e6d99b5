#pragma once

#include "gpu/kernels/attention.hpp"

#include <cuda_runtime_api.h>

namespace ringlab::gpu {

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
