#pragma once

#include "gpu/kernels/common/tile_shape.hpp"

namespace ringlab::gpu {

/// Dims that a class is compiled for; shared memory holds rows of this length, zero-filled past the real dim.
template <DimClass>
struct Dims;
template <>
struct Dims<DimClass::d64> {
    static constexpr int head = 64, value = 64;
};
template <>
struct Dims<DimClass::d128> {
    static constexpr int head = 128, value = 128;
};
template <>
struct Dims<DimClass::d192_128> {
    static constexpr int head = 192, value = 128;
};
template <>
struct Dims<DimClass::d256> {
    static constexpr int head = 256, value = 256;
};

// A thread has at most 255 registers, and the accumulators live in them: that bounds every tile below. Each warp holds
// as many rows of the result as fit, since operands from shared memory are then read once for more products: with 16
// rows a warp reads 2 bytes per 16 multiply-adds, which keeps shared memory as busy as the tensor cores.

/// A warp holds `warp_rows` query rows; o takes warp_rows * value / 32 registers, the scores warp_rows * keys / 32.
template <DimClass C>
struct ForwardConfig : Dims<C> {
    static constexpr int warps = 4, warp_rows = 32, rows = warps * warp_rows, keys = 64;
    static constexpr int blocks_per_multiprocessor = 2;
};
template <>
struct ForwardConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int warps = 4, warp_rows = 32, rows = warps * warp_rows, keys = 64;
    static constexpr int blocks_per_multiprocessor = 3;
};
template <>
struct ForwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int warps = 4, warp_rows = 16, rows = warps * warp_rows, keys = 64;
    static constexpr int blocks_per_multiprocessor = 2;
};

/// A warp holds 16 keys; dk and dv take (head + value) / (2 * dim_split) registers, s and dp rows / 2 each. dim_split
/// warps share 16 keys: each computes all of their s and dp, and its part of the dims of dk and dv.
template <DimClass C>
struct BackwardConfig : Dims<C> {
    static constexpr int rows = 64, keys = 128, dim_split = 1, stages = 2, blocks_per_multiprocessor = 1;
};
template <>
struct BackwardConfig<DimClass::d192_128> : Dims<DimClass::d192_128> {
    static constexpr int rows = 32, keys = 64, dim_split = 1, stages = 2, blocks_per_multiprocessor = 2;
};
template <>
struct BackwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int rows = 32, keys = 64, dim_split = 2, stages = 2, blocks_per_multiprocessor = 1;
};

/// A warp holds 16 query rows; dq takes head / 2 registers, s and dp keys / 2 each.
template <DimClass C>
struct QueryGradientConfig : Dims<C> {
    static constexpr int warps = 4, rows = warps * 16, keys = 64, blocks_per_multiprocessor = 2;
};
template <>
struct QueryGradientConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int warps = 4, rows = warps * 16, keys = 32, blocks_per_multiprocessor = 1;
};

}  // namespace ringlab::gpu
