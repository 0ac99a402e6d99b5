#pragma once

#include "gpu/elements/views.hpp"

#include <cuda_runtime_api.h>

namespace ringlab::gpu {

/// Sets all rows to one value. Ignores `extent.dim`. In stream order.
void fill_rows(const Extent& extent, const RowView& rows, float value, cudaStream_t stream);

/// Sets tokens to 0, whose `count` indices are in device memory. In stream order.
void clear_tokens(const Extent& extent, const View& tensor, const std::int32_t* tokens, std::int64_t count,
                  cudaStream_t stream);

/// `count` normal numbers that depend on the seed, in bf16 or fp16: what timing runs compute on, since zeros would draw
/// less power and run faster. In stream order.
void fill_normal(void* data, DType dtype, std::int64_t count, std::uint64_t seed, cudaStream_t stream);

/// Sums over heads: to (batch, tokens, 1, dim) from fp32 (batch, tokens, heads, dim), overwritten or added to. In
/// stream order.
void sum_heads(const Extent& extent, const View& to, const ConstView& from, bool adds, cudaStream_t stream);

}  // namespace ringlab::gpu
