#pragma once

#include "gpu/elements/views.hpp"
#include "gpu/kernels/common/tile_shape.hpp"

#include <cuda_runtime_api.h>

#include <span>

// What the host side, having checked it, hands to the kernels; and their launchers, one translation unit for each dim
// class so that they compile in parallel.

namespace ringlab::gpu {

/// A 16-bit input.
struct Input {
    const void* data;
    Strides strides;
    int dim;
    bool chunks_fit;  // data, strides and dim are multiples of 16 bytes
};

/// A tensor that a kernel reads or writes element by element, in a type known at run time.
struct Elements {
    void* data;
    DType dtype;
    Strides strides;
    bool pairs_fit;  // data and strides allow access to two neighbours at an even column at once
};

/// One value per row.
struct RowValues {
    float* data;
    Strides strides;
};

/// One side of a work list.
struct Items {
    const int4* items;
    const int* entries;
    int count;
};

struct Geometry {
    int batch, query_heads, group;  // query heads, and how many of them read one kv head
    int query_tokens, key_tokens;
    const int4* row_bounds;
    const int* key_positions;
};

/// How scores come from products q.k: score = product * factor, in units of log2.
struct ScoreRule {
    float factor;         // 1 if scores are rewritten
    bool rewrite;         // products are turned into scores first: a soft cap, or a scale that is not positive
    float cap_log2;       // soft cap in units of log2, 0 for none
    float scale_to_cap;   // scale / soft cap
    float scale_to_log2;  // scale * log2(e)
};

struct ForwardParams {
    Geometry geometry;
    Items work;
    Input q, k, v;
    ScoreRule rule;
    bool first, last;
    Elements carry_o;
    RowValues carry_m, carry_l;
    Elements o, o_rounded;
    RowValues lse;
};

struct BackwardParams {
    Geometry geometry;
    Items work;        // key tiles
    Items query_work;  // query tiles, for the kernel that computes dq in order
    Input q, k, v, dout;
    ScoreRule rule;
    float scale;
    const float2* statistics;
    Strides statistics_strides;
    Elements dq, dk, dv;
    bool adds;       // to dk and dv
    bool quads_fit;  // dq allows access to four neighbours at once
};

template <DimClass dims>
void launch_forward(const ForwardParams& params, DType dtype, cudaStream_t stream);

/// dk, dv and, unless `ordered`, dq by atomic additions.
template <DimClass dims>
void launch_backward(const BackwardParams& params, DType dtype, bool ordered, cudaStream_t stream);

/// dq alone, in order.
template <DimClass dims>
void launch_query_gradient(const BackwardParams& params, DType dtype, cudaStream_t stream);

/// Sizes of the tensors of an elementwise kernel.
struct Sizes {
    std::int64_t batch, tokens, heads, dim;
};

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
    Elements zeroed;  // rows of it too are set to 0, if there is one
    int zeroed_dim;
};

struct CombineParams {
    Sizes sizes;
    bool add;
    Elements destination, source;
};

void launch_merge(const MergeParams& params, cudaStream_t stream);
void launch_statistics(const StatisticsParams& params, cudaStream_t stream);
/// As few launches as their types and alignment allow.
void launch_combine(std::span<const CombineParams> all, cudaStream_t stream);

/// Lets thread blocks of a kernel have so much dynamic shared memory on the current device. Throws Error if the device
/// has too little. Asks the driver at a kernel's first launch from a thread on a device alone: that costs microseconds,
/// which short passes would show.
void allow_shared_memory(const void* kernel, const char* name, int bytes);

}  // namespace ringlab::gpu
