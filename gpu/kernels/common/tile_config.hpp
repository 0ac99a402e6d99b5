#pragma once

#include <cstdint>

namespace ringlab::gpu {

/// Query rows x keys that a thread block processes at a time.
struct TileShape {
    int rows = 0;
    int keys = 0;
};

/// The pairs of head and value dim that kernels are compiled for. Other dims use the next larger pair, filled up with
/// zeros.
enum class DimClass { d64, d128, d192_128, d256 };

/// The smallest class that holds both dims. Throws Error if either is not within 1 to 256.
DimClass dim_class(std::int64_t head_dim, std::int64_t value_dim);

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
