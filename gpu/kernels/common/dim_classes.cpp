#include "gpu/kernels/common/dim_classes.hpp"

#include "gpu/kernels/common/tile_config.hpp"
#include "layouts/basics/require.hpp"

namespace ringlab::gpu {

DimClass dim_class(std::int64_t head_dim, std::int64_t value_dim) {
    require(head_dim >= 1 && head_dim <= 256 && value_dim >= 1 && value_dim <= 256,
            "head dim {} with value dim {}: the kernels take 1 to 256 of each", head_dim, value_dim);
    if (head_dim <= 64 && value_dim <= 64) return DimClass::d64;
    if (head_dim <= 128 && value_dim <= 128) return DimClass::d128;
    if (head_dim <= 192 && value_dim <= 128) return DimClass::d192_128;
    return DimClass::d256;
}

std::array<HeadDims, 4> dims_of_classes() {
    const auto of = []<DimClass dims>() { return HeadDims{Dims<dims>::head, Dims<dims>::value}; };
    return {of.operator()<DimClass::d64>(), of.operator()<DimClass::d128>(), of.operator()<DimClass::d192_128>(),
            of.operator()<DimClass::d256>()};
}

}  // namespace ringlab::gpu
