#pragma once

#include "gpu/kernels/common/tile_config.hpp"

// Tiles of the portable kernels.

namespace ringlab::gpu::portable {

// The accumulators live in registers, of which a thread has at most 255. This limits every tile below. Each warp holds
// as many rows of the result as fit, because then each operand that is read from shared memory serves more products.
// With 16 rows a warp reads 2 bytes per 16 multiply-adds, which keeps shared memory as busy as the tensor cores.

/// A warp holds `warp_rows` query rows. O takes warp_rows * value / 32 registers, the scores warp_rows * keys / 32.
template <DimClass C>
struct ForwardConfig : Dims<C> {
    static constexpr int warps = 4, warp_rows = 32, rows = warps * warp_rows, keys = 64;
    static constexpr int blocks_per_sm = 2;
};
template <>
struct ForwardConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int warps = 4, warp_rows = 32, rows = warps * warp_rows, keys = 64;
    static constexpr int blocks_per_sm = 3;
};
template <>
struct ForwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int warps = 4, warp_rows = 16, rows = warps * warp_rows, keys = 64;
    static constexpr int blocks_per_sm = 2;
};

/// A warp has 32 keys, and `sharing` warps have the same ones: each computes S and dP of `warp_rows` query rows at a
/// time, and its part of the dims of dK and dV over all rows. dK and dV take (head + value) / sharing registers, S and
/// dP warp_rows each. With one stage, the next queries are loaded when nobody reads the last ones any more, while dQ is
/// computed. adds_lines: see add_quads(); with the smaller dims it is no faster.
template <DimClass C>
struct BackwardConfig : Dims<C> {
    static constexpr bool adds_lines = false;
    static constexpr int rows = 64, keys = 128, sharing = 2, warp_rows = 32, stages = 2, blocks_per_sm = 1;
};
template <>
struct BackwardConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr bool adds_lines = false;
    static constexpr int rows = 64, keys = 128, sharing = 1, warp_rows = 32, stages = 2, blocks_per_sm = 2;
};
template <>
struct BackwardConfig<DimClass::d192_128> : Dims<DimClass::d192_128> {
    static constexpr bool adds_lines = false;
    static constexpr int rows = 64, keys = 64, sharing = 4, warp_rows = 16, stages = 1, blocks_per_sm = 1;
};
template <>
struct BackwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr bool adds_lines = true;
    static constexpr int rows = 64, keys = 64, sharing = 4, warp_rows = 16, stages = 1, blocks_per_sm = 1;
};

/// A warp holds 16 query rows. dQ takes head / 2 registers, S and dP keys / 2 each.
template <DimClass C>
struct QueryGradientConfig : Dims<C> {
    static constexpr int warps = 4, rows = warps * 16, keys = 64, blocks_per_sm = 2;
};
template <>
struct QueryGradientConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int warps = 4, rows = warps * 16, keys = 32, blocks_per_sm = 1;
};

}  // namespace ringlab::gpu::portable
