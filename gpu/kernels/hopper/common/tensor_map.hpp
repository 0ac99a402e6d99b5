#pragma once

#include "gpu/elements/views.hpp"

#include <cuda.h>

namespace ringlab::gpu::hopper {

/// Whether a bulk tensor copy can reach a (batch, tokens, heads, dim) tensor: data and strides are multiples of 16
/// bytes and strides below 2^40 bytes. A stride that no size of more than one uses does not count.
bool can_map(const ConstView& view, const Extent& extent);

/// Elements of a box's inner side: 128 bytes, the width of the swizzle.
constexpr int box_columns(DType dtype) { return dtype == DType::fp32 ? 32 : 64; }

/// How the 16-byte chunks of a box's rows are placed in shared memory.
enum class Swizzle {
    none,
    bytes_128,  ///< chunk c of row r at place c ^ (r % 8); the box starts at a multiple of 1024 bytes
};

/// A map of the tensor for copies of boxes of box_columns(view.dtype) dims x `box_tokens` tokens of one head and batch
/// element, 1 to 256 tokens. Coordinates are (dim, token, head, batch); what lies outside reads as 0 and is not
/// written. Throws Error unless can_map(view, extent), and if the driver refuses.
CUtensorMap make_tensor_map(const ConstView& view, const Extent& extent, int box_tokens,
                            Swizzle swizzle = Swizzle::bytes_128);

}  // namespace ringlab::gpu::hopper
