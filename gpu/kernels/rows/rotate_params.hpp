#pragma once

#include "gpu/kernels/common/params.hpp"

namespace ringlab::gpu {

/// Arguments of rotate()'s kernel, checked.
struct RotateParams {
    static constexpr int most_pairs = 128;

    Sizes sizes;
    Elements to, from;
    const std::int32_t* positions;  // by token
    int first, pairs, distance;     // of the rotated dims; see layouts::RotaryTable
    bool interleaved, copies;       // copies: the other dims too
    double amplitude;
    double sign;  // factor of the sines: 1, or -1 for the transpose
    double frequencies[most_pairs];
};

void launch_rotate(const RotateParams& params, cudaStream_t stream);

}  // namespace ringlab::gpu
