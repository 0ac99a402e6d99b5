#pragma once

#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/common/params.hpp"

// Launchers of the portable kernels, each compiled for ForwardParams or BackwardParams and for Dropping<> of them.

namespace ringlab::gpu::portable {

template <DimClass dims, class Params>
void launch_forward(const Params& params, DType dtype, cudaStream_t stream);

/// dK, dV and, unless `dq_apart`, dQ by atomic additions.
template <DimClass dims, class Params>
void launch_backward(const Params& params, DType dtype, bool dq_apart, cudaStream_t stream);

/// dQ alone, summed in the order of the keys.
template <DimClass dims, class Params>
void launch_query_gradient(const Params& params, DType dtype, cudaStream_t stream);

}  // namespace ringlab::gpu::portable
