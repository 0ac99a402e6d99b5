#pragma once

#include "gpu/kernels/common/tile_config.hpp"

namespace ringlab::gpu::hopper {

/// Each warp processes 16 keys at a time and has `stages` loads of 16 keys in flight. It takes 100 KB or more in flight
/// per SM to hide the latency of memory. Registers: Q head / 4, O value / 2.
template <DimClass C>
struct SplitKvConfig : Dims<C> {
    static constexpr int rows = 16, warps = 8, warp_keys = 16, keys = warps * warp_keys, stages = 3;
};
template <>
struct SplitKvConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int rows = 16, warps = 8, warp_keys = 16, keys = warps * warp_keys, stages = 6;
};
template <>
struct SplitKvConfig<DimClass::d192_128> : Dims<DimClass::d192_128> {
    static constexpr int rows = 16, warps = 4, warp_keys = 16, keys = warps * warp_keys, stages = 5;
};
template <>
struct SplitKvConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int rows = 16, warps = 4, warp_keys = 16, keys = warps * warp_keys, stages = 3;
};

}  // namespace ringlab::gpu::hopper
