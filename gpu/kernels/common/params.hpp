#pragma once

#include "gpu/elements/views.hpp"
#include "gpu/kernels/common/tile_config.hpp"

#include <cuda_runtime_api.h>

#include <span>

// Parameters of the kernels. The host side has checked them.

namespace ringlab::gpu {

/// A 16-bit input.
struct Input {
    const void* data;
    Strides strides;
    int dim;
    bool chunks_fit;  // data, strides and dim are multiples of 16 bytes
};

/// A tensor that a kernel reads or writes element by element. Its type is known at run time only.
struct Elements {
    void* data;
    DType dtype;
    Strides strides;
    bool pairs_fit;  // data and strides allow one access to two neighbours at an even column
};

/// One value per row.
struct RowValues {
    float* data;
    Strides strides;
};

/// The work tiles of one side in device memory. Tiles (work_list.hpp) says what `items` and `entries` hold.
struct Items {
    const int4* items;
    const int* entries;
    int count;  // of items
};

/// Sizes of an attend, and the keys that each of its rows sees.
struct Geometry {
    int batch, query_heads, group;  // group: query heads per kv head
    int query_tokens, key_tokens;
    int seeing_tokens;  // rows from here on see nothing: backward kernels read their q and dout as 0
    const int4* row_bounds;    // of each row: see RowBounds::device()
    const int* key_positions;  // global, of each key: see KeyPositions::device()
};

/// How a product q.k becomes a score in units of log2: score = product * factor.
struct ScoreRule {
    float factor;         // 1 if scores are rewritten
    bool rewrite;         // products become scores before the softmax: a soft cap, or a scale that is not positive
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
    Items query_work;  // query tiles, for the kernel that computes dq alone
    Input q, k, v, dout;
    ScoreRule rule;
    float scale;
    const float2* statistics;
    Strides statistics_strides;
    Elements dq, dk, dv;
    bool adds;       // dk and dv are added to, instead of overwritten
    bool quads_fit;  // dq allows one access to four neighbours
};

/// Sizes of the tensors of an elementwise kernel.
struct Sizes {
    std::int64_t batch, tokens, heads, dim;
};

/// Allows thread blocks of a kernel so much dynamic shared memory on the current device. Throws Error if the device has
/// less. It asks the driver only when a thread first launches the kernel on a device, because that costs microseconds,
/// which would show in short passes.
void allow_shared_memory(const void* kernel, const char* name, int bytes);

/// Most shared memory of a thread block on the current device.
int most_shared_memory();

}  // namespace ringlab::gpu
