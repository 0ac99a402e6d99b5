#include "gpu/kernels/hopper/common/tensor_map.hpp"

#include "gpu/device/driver.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <array>

namespace ringlab::gpu::hopper {
namespace {

decltype(&cuTensorMapEncodeTiled) encoder() {
    static const auto function =
        reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(driver_function("cuTensorMapEncodeTiled"));
    return function;
}

CUtensorMapDataType map_type(DType dtype) {
    switch (dtype) {
        case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
        case DType::fp16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
        case DType::fp32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
        default: fail("no tensor map of {}", to_string(dtype));
    }
}

constexpr std::int64_t chunk_bytes = 16, most_stride_bytes = std::int64_t{1} << 40;

struct Side {
    std::int64_t size, stride;  // stride in elements
};

std::array<Side, 3> outer_sides(const ConstView& view, const Extent& extent) {
    return {
        {{extent.tokens, view.strides.token}, {extent.heads, view.strides.head}, {extent.batch, view.strides.batch}}};
}

}  // namespace

bool can_map(const ConstView& view, const Extent& extent) {
    const auto sides = outer_sides(view, extent);
    return reinterpret_cast<std::uintptr_t>(view.data) % chunk_bytes == 0 &&
           std::all_of(sides.begin(), sides.end(), [&](const Side& side) {
               const auto bytes = side.stride * layouts::bytes_of(view.dtype);
               return side.size <= 1 || (bytes % chunk_bytes == 0 && bytes > 0 && bytes < most_stride_bytes);
           });
}

CUtensorMap make_tensor_map(const ConstView& view, const Extent& extent, int box_tokens, Swizzle swizzle) {
    require(can_map(view, extent),
            "a tensor at {} with strides {}, {}, {} (batch, token, head): bulk copies need multiples of {} bytes",
            view.data, view.strides.batch, view.strides.token, view.strides.head, chunk_bytes);
    // The driver wants no side of 0, and a stride for a side of 1 as well.
    std::array<cuuint64_t, 4> sizes{static_cast<cuuint64_t>(std::max<std::int64_t>(extent.dim, 1))};
    std::array<cuuint64_t, 3> strides{};
    const auto sides = outer_sides(view, extent);
    for (std::size_t i = 0; i < sides.size(); ++i) {
        sizes[i + 1] = static_cast<cuuint64_t>(std::max<std::int64_t>(sides[i].size, 1));
        strides[i] =
            static_cast<cuuint64_t>(sides[i].size <= 1 ? chunk_bytes : sides[i].stride * layouts::bytes_of(view.dtype));
    }
    const std::array<cuuint32_t, 4> box{static_cast<cuuint32_t>(box_columns(view.dtype)),
                                        static_cast<cuuint32_t>(box_tokens), 1, 1};
    const std::array<cuuint32_t, 4> steps{1, 1, 1, 1};
    CUtensorMap map;
    const auto status =
        encoder()(&map, map_type(view.dtype), 4, const_cast<void*>(view.data), sizes.data(), strides.data(), box.data(),
                  steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                  swizzle == Swizzle::bytes_128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    require(status == CUDA_SUCCESS,
            "the driver refuses a map of {} x {} tokens x {} heads x dim {} in boxes of {} tokens: error {}",
            extent.batch, extent.tokens, extent.heads, extent.dim, box_tokens, static_cast<int>(status));
    return map;
}

}  // namespace ringlab::gpu::hopper
