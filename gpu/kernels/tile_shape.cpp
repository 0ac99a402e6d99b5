#include "gpu/kernels/common/tile_shape.hpp"

#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/common/tile_config.hpp"
#include "gpu/kernels/hopper/backward/backward_config.hpp"
#include "gpu/kernels/hopper/few_rows/few_rows.hpp"
#include "gpu/kernels/hopper/few_rows/few_rows_config.hpp"
#include "gpu/kernels/hopper/forward/config.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "layouts/basics/require.hpp"

namespace ringlab::gpu {
namespace {

template <template <DimClass> class Config>
TileShape tile_of(DimClass dims) {
    switch (dims) {
        case DimClass::d64: return {Config<DimClass::d64>::rows, Config<DimClass::d64>::keys};
        case DimClass::d128: return {Config<DimClass::d128>::rows, Config<DimClass::d128>::keys};
        case DimClass::d192_128: return {Config<DimClass::d192_128>::rows, Config<DimClass::d192_128>::keys};
        case DimClass::d256: return {Config<DimClass::d256>::rows, Config<DimClass::d256>::keys};
    }
    fail("dim class {} is not one of those compiled", static_cast<int>(dims));
}

}  // namespace

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

TileShape forward_tile(DimClass dims, KernelFamily family) {
    return family == KernelFamily::hopper ? tile_of<hopper::ForwardConfig>(dims) : tile_of<ForwardConfig>(dims);
}
TileShape backward_tile(DimClass dims, KernelFamily family) {
    return family == KernelFamily::hopper ? tile_of<hopper::BackwardConfig>(dims) : tile_of<BackwardConfig>(dims);
}

TileShape backward_query_tile(DimClass dims) { return tile_of<QueryGradientConfig>(dims); }

TileShape hopper::few_rows_tile(DimClass dims) { return tile_of<hopper::FewRowsConfig>(dims); }

}  // namespace ringlab::gpu
