#pragma once

#include "gpu/kernels/common/tile_config.hpp"

namespace ringlab::gpu::hopper {

/// Each warp takes in 16 keys at a time, `stages` of them under way. Memory's latency is hidden by bytes under way, of
/// which a multiprocessor needs 100 KB or more; registers: Q head / 4, O value / 2.
template <DimClass C>
struct FewRowsConfig : Dims<C> {
    static constexpr int rows = 16, warps = 8, warp_keys = 16, keys = warps * warp_keys, stages = 3;
};
template <>
struct FewRowsConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int rows = 16, warps = 8, warp_keys = 16, keys = warps * warp_keys, stages = 6;
};
template <>
struct FewRowsConfig<DimClass::d192_128> : Dims<DimClass::d192_128> {
    static constexpr int rows = 16, warps = 4, warp_keys = 16, keys = warps * warp_keys, stages = 5;
};
template <>
struct FewRowsConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int rows = 16, warps = 4, warp_keys = 16, keys = warps * warp_keys, stages = 3;
};

}  // namespace ringlab::gpu::hopper
