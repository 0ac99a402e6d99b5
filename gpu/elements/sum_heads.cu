#include "gpu/device/cuda_check.hpp"
#include "gpu/elements/elementwise.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace ringlab::gpu {
namespace {

constexpr int sum_threads = 256;

/// A thread adds up one number of all heads, in fp32; neighbours read neighbours.
template <class T>
__global__ void sum_heads_kernel(Extent extent, T* to, Strides to_strides, const float* from, Strides from_strides,
                                 bool adds) {
    const auto count = extent.batch * extent.tokens * extent.dim;
    for (std::int64_t i = blockIdx.x * sum_threads + threadIdx.x; i < count; i += gridDim.x * sum_threads) {
        const auto dim = i % extent.dim, token = i / extent.dim % extent.tokens, batch = i / extent.dim / extent.tokens;
        const float* head = from + batch * from_strides.batch + token * from_strides.token + dim;
        T& result = to[batch * to_strides.batch + token * to_strides.token + dim];
        float sum = adds ? static_cast<float>(result) : 0.0f;
        for (std::int64_t h = 0; h < extent.heads; ++h, head += from_strides.head) sum += *head;
        result = static_cast<T>(sum);
    }
}

template <class T>
void launch(const Extent& extent, const View& to, const ConstView& from, bool adds, cudaStream_t stream) {
    constexpr std::int64_t most_blocks = 4096;
    const auto count = extent.batch * extent.tokens * extent.dim;
    const auto blocks = std::min(most_blocks, (count + sum_threads - 1) / sum_threads);
    sum_heads_kernel<<<static_cast<unsigned>(blocks), sum_threads, 0, stream>>>(
        extent, static_cast<T*>(to.data), to.strides, static_cast<const float*>(from.data), from.strides, adds);
}

}  // namespace

void sum_heads(const Extent& extent, const View& to, const ConstView& from, bool adds, cudaStream_t stream) {
    if (extent.batch * extent.tokens * extent.dim == 0) return;
    switch (to.dtype) {
        case DType::bf16: launch<__nv_bfloat16>(extent, to, from, adds, stream); break;
        case DType::fp16: launch<__half>(extent, to, from, adds, stream); break;
        default: launch<float>(extent, to, from, adds, stream); break;
    }
    RINGLAB_CUDA_LAUNCHED("sum_heads_kernel");
}

}  // namespace ringlab::gpu
