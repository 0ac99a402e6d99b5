#pragma once

#include "gpu/kernels/common/params.hpp"

// Forward pass of few query rows over many keys, as in decoding: thread blocks split the keys.

namespace ringlab::gpu::hopper {

/// Most query tokens of a rank for this kernel. A row group is this many rows (query tokens and heads) of a kv head.
constexpr std::int64_t most_split_kv_rows = 16;

/// The forward kernel for params.work of at most one item, which holds all query tokens. Data and strides of tensors
/// must be multiples of 16 bytes. `blocks` thread blocks (1, 2, 4 or 8) split the key tiles of each row group.
template <DimClass dims>
void launch_split_kv(const ForwardParams& params, int blocks, DType dtype, cudaStream_t stream);

/// Row groups of a kv head. Each reads all of its keys.
constexpr std::int64_t split_kv_row_groups(std::int64_t tokens, std::int64_t group) {
    return (tokens * group + most_split_kv_rows - 1) / most_split_kv_rows;
}

/// Thread blocks per row group that make a launch shortest on the current device: `row_groups` of `entries` key tiles.
int blocks_per_row_group(std::int64_t row_groups, std::int64_t entries);

}  // namespace ringlab::gpu::hopper
