#pragma once

#include "gpu/kernels/common/tile_config.hpp"

#include <array>
#include <cstdint>

namespace ringlab::gpu {

/// The dims that a DimClass is compiled for. Smaller dims are filled up with zeros.
struct HeadDims {
    std::int64_t head = 0, value = 0;
};

/// The dims of all classes, the smallest first.
inline std::array<HeadDims, 4> dims_of_classes() {
    const auto of = []<DimClass dims>() { return HeadDims{Dims<dims>::head, Dims<dims>::value}; };
    return {of.operator()<DimClass::d64>(), of.operator()<DimClass::d128>(), of.operator()<DimClass::d192_128>(),
            of.operator()<DimClass::d256>()};
}

/// Calls function.operator()<dims>() for a class that is known at run time.
template <class Function>
constexpr decltype(auto) for_dim_class(DimClass dims, Function&& function) {
    switch (dims) {
        case DimClass::d64: return function.template operator()<DimClass::d64>();
        case DimClass::d128: return function.template operator()<DimClass::d128>();
        case DimClass::d192_128: return function.template operator()<DimClass::d192_128>();
        case DimClass::d256: break;
    }
    return function.template operator()<DimClass::d256>();
}

/// The tile of the kernel that Config describes.
template <template <DimClass> class Config>
TileShape tile_of(DimClass dims) {
    return for_dim_class(dims, []<DimClass d>() { return TileShape{Config<d>::rows, Config<d>::keys}; });
}

}  // namespace ringlab::gpu
