#include "gpu/elements/host_tensors.hpp"

#include "layouts/basics/require.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

namespace ringlab::gpu {
namespace {

template <class Target, class Source>
Target copy_bits(const Source& source) {
    static_assert(sizeof(Target) == sizeof(Source));
    Target target;
    std::memcpy(static_cast<void*>(&target), &source, sizeof(target));
    return target;
}

void require_16_bits(layouts::DType dtype) {
    require(layouts::bytes_of(dtype) == 2, "the CUDA backend takes bf16 and fp16 tensors, not {}", to_string(dtype));
}

}  // namespace

void from_bits(std::span<const std::uint16_t> patterns, layouts::DType dtype, std::span<float> numbers) {
    require_16_bits(dtype);
    for (std::size_t i = 0; i < patterns.size(); ++i)
        numbers[i] = dtype == layouts::DType::bf16 ? __bfloat162float(copy_bits<__nv_bfloat16>(patterns[i]))
                                                   : __half2float(copy_bits<__half>(patterns[i]));
}

}  // namespace ringlab::gpu
