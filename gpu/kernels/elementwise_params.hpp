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

void launch_merge(const MergeParams& params, cudaStream_t stream);
void launch_statistics(const StatisticsParams& params, cudaStream_t stream);
/// In as few launches as the tensors' types and alignment allow.
void launch_combine(std::span<const CombineParams> all, cudaStream_t stream);

}  // namespace ringlab::gpu
