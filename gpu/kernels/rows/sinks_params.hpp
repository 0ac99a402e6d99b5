#pragma once

#include "gpu/kernels/common/params.hpp"

namespace ringlab::gpu {

/// Arguments of add_sinks()'s kernel.
struct AddSinksParams {
    Sizes sizes;
    Elements o, o_rounded;
    RowValues lse;
    const float* sinks;
};

/// Arguments of sink_gradient()'s kernel.
struct SinkGradientParams {
    std::int64_t batch, tokens, heads;
    const float2* statistics;
    Strides strides;
    const float* sinks;
    float* gradient;
};

void launch_add_sinks(const AddSinksParams& params, cudaStream_t stream);
void launch_sink_gradient(const SinkGradientParams& params, cudaStream_t stream);

}  // namespace ringlab::gpu
