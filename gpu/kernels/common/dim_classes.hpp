#pragma once

#include <array>
#include <cstdint>

namespace ringlab::gpu {

/// What a DimClass is compiled for: others are filled up to it.
struct HeadDims {
    std::int64_t head = 0, value = 0;
};

/// Of all classes, the smallest first.
std::array<HeadDims, 4> dims_of_classes();

}  // namespace ringlab::gpu
