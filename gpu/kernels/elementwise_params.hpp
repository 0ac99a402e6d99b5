#pragma once

#include "gpu/kernels/common/params.hpp"

#include <span>

namespace ringlab::gpu {

struct MergeParams {
    Sizes sizes;
    bool first;
    Elements o;
    RowValues lse;
    Elements partial_o;
    RowValues partial_lse;
};

struct StatisticsParams {
    Sizes sizes;
    Elements o, dout;
    RowValues lse;
    float2* statistics;
    Strides statistics_strides;
    Elements zeroed;  // set to 0 if its data is not null
    int zeroed_dim;
};

/// destination = source + sums, added up in fp32 in their order. Each sum is fp32 or has the destination's type.
struct CombineParams {
    static constexpr int most_sums = 7;
    Sizes sizes;
    Elements destination, source;
    Elements sums[most_sums];
    int sum_count;
};

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

void launch_merge(const MergeParams& params, cudaStream_t stream);
void launch_statistics(const StatisticsParams& params, cudaStream_t stream);
/// In as few launches as the tensors' types and alignment allow.
void launch_combine(std::span<const CombineParams> all, cudaStream_t stream);
void launch_rotate(const RotateParams& params, cudaStream_t stream);
void launch_add_sinks(const AddSinksParams& params, cudaStream_t stream);
void launch_sink_gradient(const SinkGradientParams& params, cudaStream_t stream);

}  // namespace ringlab::gpu
