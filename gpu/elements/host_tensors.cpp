#include "gpu/elements/host_tensors.hpp"

#include "layouts/basics/require.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace ringlab::gpu {

void from_bits(std::span<const std::uint16_t> patterns, layouts::DType dtype, std::span<float> numbers) {
    require(layouts::bytes_of(dtype) == 2, "the CUDA backend takes bf16 and fp16 tensors, not {}", to_string(dtype));
    std::ranges::transform(patterns, numbers.begin(), [&](std::uint16_t bits) -> float {
        if (dtype == layouts::DType::bf16) return __nv_bfloat16(__nv_bfloat16_raw{bits});
        return __half(__half_raw{bits});
    });
}

}  // namespace ringlab::gpu
