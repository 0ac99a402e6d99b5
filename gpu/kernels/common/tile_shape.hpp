#pragma once

#include <cstdint>

namespace ringlab::gpu {

/// Query rows x keys that a thread block works on at a time.
struct TileShape {
    int rows = 0;
    int keys = 0;
};

/// The kernels are compiled for these pairs of dims; others are zero-filled up to the next one.
enum class DimClass { d64, d128, d192_128, d256 };

/// The smallest class that holds both dims. Throws Error if either is not within 1 to 256.
DimClass dim_class(std::int64_t head_dim, std::int64_t value_dim);

enum class KernelFamily;

TileShape forward_tile(DimClass dims, KernelFamily family);
/// Of the kernel that stays on a key tile. Throws Error if the family has none.
TileShape backward_tile(DimClass dims, KernelFamily family);
/// Of the portable kernel that stays on a query tile.
TileShape backward_query_tile(DimClass dims);

}  // namespace ringlab::gpu
