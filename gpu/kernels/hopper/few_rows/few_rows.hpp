#pragma once

#include "gpu/kernels/common/params.hpp"

// Forward pass of a few query rows over many keys, as decoding asks for.

namespace ringlab::gpu::hopper {

/// A rank's rows are few up to this many.
constexpr std::int64_t few_rows = 16;

/// All rows that there may be, by the keys that a thread block takes in at a time.
TileShape few_rows_tile(DimClass dims);

/// The forward kernel for params.work of at most one item, all query tokens. Tensors have data and strides in multiples
/// of 16 bytes. The keys of a kv head go to `blocks` thread blocks in turns: 1, 2, 4 or 8.
template <DimClass dims>
void launch_few_rows(const ForwardParams& params, int blocks, DType dtype, cudaStream_t stream);

/// Rows of 16 query heads and tokens that a kv head's rows make: each reads all of its keys.
constexpr std::int64_t units_of_few_rows(std::int64_t tokens, std::int64_t group) {
    return (tokens * group + few_rows - 1) / few_rows;
}

/// Thread blocks for each of so many units of so many key tiles, on the current device.
int blocks_per_unit(std::int64_t units, std::int64_t entries);

}  // namespace ringlab::gpu::hopper
