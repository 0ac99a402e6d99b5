#pragma once

#include "gpu/kernels/common/tile_shape.hpp"

namespace ringlab::gpu {

/// The dims that a class is compiled for. Rows in shared memory have this length, with zeros past the real dim.
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

}  // namespace ringlab::gpu
