#pragma once

#include "gpu/elements/views.hpp"

namespace ringlab::gpu {

/// One rank's tensors in device memory of its caller: (batch, tokens of the shard, heads, dim), dims of a head
/// adjacent. The kernels of sm_90a want data and strides in multiples of 16 bytes.
struct CallerTensors {
    ConstView q, k, v;               ///< in the problem's dtype
    View o_exact;                    ///< dense, fp32; a forward pass writes it, a backward pass reads it
    RowView lse;                     ///< dense, likewise
    View o;                          ///< dense, in the problem's dtype; a forward pass writes it
    ConstView dout;                  ///< this and what follows: of a backward pass
    View dq, dk, dv;                 ///< in the problem's dtype
    const float* sinks = nullptr;    ///< by query head, where the problem has sinks
    float* sink_gradient = nullptr;  ///< likewise: what the rank's own rows add to it
    void* local = nullptr;           ///< RingPlan::local_bytes() of memory, aligned to 256 bytes, until the pass ends
};

}  // namespace ringlab::gpu
