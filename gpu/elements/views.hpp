#pragma once

#include "layouts/basics/basic_types.hpp"

#include <cstdint>

namespace ringlab::gpu {

using layouts::DType;

/// Elements from one batch element, token or head to the next; the dims of a head are adjacent.
struct Strides {
    std::int64_t batch = 0;
    std::int64_t token = 0;
    std::int64_t head = 0;
};

/// Strides of a dense (batch, tokens, heads, dim) tensor; dim 1 for one value per row, (batch, tokens, heads).
constexpr Strides dense_strides(std::int64_t tokens, std::int64_t heads, std::int64_t dim = 1) {
    return {tokens * heads * dim, heads * dim, dim};
}

/// Sizes of a (batch, tokens, heads, dim) tensor, or of the part of it that a call works on.
struct Extent {
    std::int64_t batch = 1;
    std::int64_t tokens = 0;
    std::int64_t heads = 1;
    std::int64_t dim = 0;
};

/// Device memory of a (batch, tokens, heads, dim) tensor that a kernel writes. Kernels are fastest when data, strides
/// and dim are multiples of 16 bytes; they are right for any.
struct View {
    void* data = nullptr;
    DType dtype = DType::fp32;
    Strides strides;

    /// The same tensor from head number `head` on.
    View from_head(std::int64_t head) const {
        return {static_cast<char*>(data) + head * strides.head * layouts::bytes_of(dtype), dtype, strides};
    }
};

/// As View, for a tensor that is only read.
struct ConstView {
    const void* data = nullptr;
    DType dtype = DType::fp32;
    Strides strides;

    ConstView() = default;
    ConstView(const void* data_, DType dtype_, Strides strides_) : data(data_), dtype(dtype_), strides(strides_) {}
    ConstView(const View& view) : ConstView(view.data, view.dtype, view.strides) {}

    ConstView from_head(std::int64_t head) const {
        return {static_cast<const char*>(data) + head * strides.head * layouts::bytes_of(dtype), dtype, strides};
    }
};

/// One fp32 value per row, (batch, tokens, heads).
struct RowView {
    float* data = nullptr;
    Strides strides;

    RowView from_head(std::int64_t head) const { return {data + head * strides.head, strides}; }
};

/// As RowView, for values that are only read.
struct ConstRowView {
    const float* data = nullptr;
    Strides strides;

    ConstRowView() = default;
    ConstRowView(const float* data_, Strides strides_) : data(data_), strides(strides_) {}
    ConstRowView(const RowView& view) : ConstRowView(view.data, view.strides) {}

    ConstRowView from_head(std::int64_t head) const { return {data + head * strides.head, strides}; }
};

}  // namespace ringlab::gpu
