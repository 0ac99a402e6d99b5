#pragma once

#include "gpu/kernels/common/tile_config.hpp"

namespace ringlab::gpu::hopper {

// A thread block is one producer warpgroup and `consumers` warpgroups of 64 query rows each. Shared memory holds
// `q_stages` of Q, and `stages` of K and V; registers per thread: O value / 2, scores keys / 2, their 16-bit form keys
// / 4.
template <DimClass C>
struct ForwardConfig : Dims<C> {
    static constexpr int consumers = 2, keys = 128, stages = 2;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = C == DimClass::d128 ? 2 : 1;
};
// Exponentials cost as much as products here: three warpgroups keep both busy.
template <>
struct ForwardConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int consumers = 3, keys = 128, stages = 2;
    static constexpr int producer_registers = 32, consumer_registers = 160;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = 2;
};
template <>
struct ForwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int consumers = 2, keys = 80, stages = 2;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = 1;
};

}  // namespace ringlab::gpu::hopper
