#include "gpu/host_tensors.hpp"

#include "layouts/require.hpp"

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

HostTensor<std::uint16_t> to_bits(const HostTensor<float>& tensor, layouts::DType dtype) {
    require_16_bits(dtype);
    HostTensor<std::uint16_t> bits{tensor.shape, {}};
    bits.values.reserve(tensor.values.size());
    for (const float x : tensor.values)
        bits.values.push_back(dtype == layouts::DType::bf16 ? copy_bits<std::uint16_t>(__float2bfloat16_rn(x))
                                                            : copy_bits<std::uint16_t>(__float2half_rn(x)));
    return bits;
}

void from_bits(std::span<const std::uint16_t> patterns, layouts::DType dtype, std::span<float> numbers) {
    require_16_bits(dtype);
    for (std::size_t i = 0; i < patterns.size(); ++i)
        numbers[i] = dtype == layouts::DType::bf16 ? __bfloat162float(copy_bits<__nv_bfloat16>(patterns[i]))
                                                   : __half2float(copy_bits<__half>(patterns[i]));
}

}  // namespace ringlab::gpu
