#pragma once

#include "gpu/kernels/tile_config.hpp"

namespace ringlab::gpu::hopper {

/// What to do with the lines in L2 (bits of the cache hint).
enum class Keep : std::uint64_t {
    normal = 0x1000000000000000,
    first_to_go = 0x12f0000000000000,  ///< read once
    last_to_go = 0x14f0000000000000,   ///< read by many
};

// A thread block is one producer warpgroup and `consumers` warpgroups of 64 query rows each. Shared memory holds Q once
// and `stages` of K and V; registers per thread: O value / 2, scores keys / 2, their 16-bit form keys / 4.
template <DimClass C>
struct ForwardConfig : Dims<C> {
    static constexpr int consumers = 2, keys = 128, stages = 2;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = C == DimClass::d128 ? 2 : 1;
    static constexpr bool ping_pong = true;      // warpgroups issue products in turns
    static constexpr bool lazy_rescale = false;  // O and l keep the scale of a maximum up to 2^8 too small
    static constexpr Keep keep = Keep::last_to_go;
};
// Exponentials cost as much as products here: three warpgroups keep both busy.
template <>
struct ForwardConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int consumers = 3, keys = 128, stages = 2;
    static constexpr int producer_registers = 32, consumer_registers = 160;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = 2;
    static constexpr bool ping_pong = true;      // warpgroups issue products in turns
    static constexpr bool lazy_rescale = false;  // O and l keep the scale of a maximum up to 2^8 too small
    static constexpr Keep keep = Keep::last_to_go;
};
template <>
struct ForwardConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int consumers = 2, keys = 80, stages = 2;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static constexpr int rows = 64 * consumers;
    static constexpr int q_stages = 1;
    static constexpr bool ping_pong = true;      // warpgroups issue products in turns
    static constexpr bool lazy_rescale = false;  // O and l keep the scale of a maximum up to 2^8 too small
    static constexpr Keep keep = Keep::last_to_go;
};

}  // namespace ringlab::gpu::hopper
