#include "gpu/device/cuda_check.hpp"
#include "gpu/elements/elementwise.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace ringlab::gpu {
namespace {

constexpr int threads = 256;
constexpr std::int64_t most_blocks = 2048;  // each thread goes on with a stride of the whole grid

unsigned blocks_for(std::int64_t count) {
    return static_cast<unsigned>(std::clamp<std::int64_t>((count + threads - 1) / threads, 1, most_blocks));
}

__device__ std::int64_t element(const Extent& extent, const Strides& strides, std::int64_t i) {
    const auto dim = i % extent.dim;
    const auto head = i / extent.dim % extent.heads;
    const auto token = i / extent.dim / extent.heads % extent.tokens;
    const auto batch = i / extent.dim / extent.heads / extent.tokens;
    return batch * strides.batch + token * strides.token + head * strides.head + dim;
}

__global__ void fill_kernel(Extent extent, RowView rows, float value) {
    const auto count = extent.batch * extent.tokens * extent.heads;
    for (std::int64_t i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads)
        rows.data[element(extent, rows.strides, i)] = value;
}

/// `extent` is that of the tokens that are set to 0.
__global__ void clear_kernel(Extent extent, View tensor, const std::int32_t* tokens) {
    const auto count = extent.batch * extent.tokens * extent.heads * extent.dim;
    for (std::int64_t i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads) {
        const auto place = i / extent.dim / extent.heads % extent.tokens;
        const auto index = element(extent, tensor.strides, i) + (tokens[place] - place) * tensor.strides.token;
        if (tensor.dtype == DType::fp32)
            static_cast<float*>(tensor.data)[index] = 0;
        else
            static_cast<std::uint16_t*>(tensor.data)[index] = 0;
    }
}

/// The finaliser of splitmix64: well mixed bits of a counter.
__device__ std::uint64_t mixed(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/// Fills `data` with normal numbers, by the method of Box and Muller (one number of each pair).
template <class T>
__global__ void normal_kernel(T* data, std::int64_t count, std::uint64_t seed) {
    const auto start = mixed(seed);
    for (std::int64_t i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads) {
        const auto bits = mixed(start + static_cast<std::uint64_t>(i));
        constexpr float unit = 0x1p-32f;
        const float radius = sqrtf(-2 * __logf((static_cast<float>(bits >> 32) + 0.5f) * unit));
        data[i] = static_cast<T>(radius * __cosf(6.2831853f * static_cast<float>(bits & 0xffffffff) * unit));
    }
}

/// A thread adds up one number of all heads, in fp32; neighbours read neighbours.
template <class T>
__global__ void sum_heads_kernel(Extent extent, T* to, Strides to_strides, const float* from, Strides from_strides,
                                 bool adds) {
    const auto count = extent.batch * extent.tokens * extent.dim;
    for (std::int64_t i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads) {
        const auto dim = i % extent.dim, token = i / extent.dim % extent.tokens, batch = i / extent.dim / extent.tokens;
        const float* head = from + batch * from_strides.batch + token * from_strides.token + dim;
        T& result = to[batch * to_strides.batch + token * to_strides.token + dim];
        float sum = adds ? static_cast<float>(result) : 0.0f;
        for (std::int64_t h = 0; h < extent.heads; ++h, head += from_strides.head) sum += *head;
        result = static_cast<T>(sum);
    }
}

template <class T>
void launch_sum(const Extent& extent, const View& to, const ConstView& from, bool adds, cudaStream_t stream) {
    sum_heads_kernel<<<blocks_for(extent.batch * extent.tokens * extent.dim), threads, 0, stream>>>(
        extent, static_cast<T*>(to.data), to.strides, static_cast<const float*>(from.data), from.strides, adds);
}

}  // namespace

void sum_heads(const Extent& extent, const View& to, const ConstView& from, bool adds, cudaStream_t stream) {
    if (extent.batch * extent.tokens * extent.dim == 0) return;
    switch (to.dtype) {
        case DType::bf16: launch_sum<__nv_bfloat16>(extent, to, from, adds, stream); break;
        case DType::fp16: launch_sum<__half>(extent, to, from, adds, stream); break;
        default: launch_sum<float>(extent, to, from, adds, stream); break;
    }
    RINGLAB_CUDA_LAUNCHED("sum_heads_kernel");
}

void fill_normal(void* data, DType dtype, std::int64_t count, std::uint64_t seed, cudaStream_t stream) {
    if (count == 0) return;
    if (dtype == DType::bf16)
        normal_kernel<<<blocks_for(count), threads, 0, stream>>>(static_cast<__nv_bfloat16*>(data), count, seed);
    else
        normal_kernel<<<blocks_for(count), threads, 0, stream>>>(static_cast<__half*>(data), count, seed);
    RINGLAB_CUDA_LAUNCHED("normal_kernel");
}

void fill_rows(const Extent& extent, const RowView& rows, float value, cudaStream_t stream) {
    const Extent one{extent.batch, extent.tokens, extent.heads, 1};
    const auto count = one.batch * one.tokens * one.heads;
    if (count == 0) return;
    fill_kernel<<<blocks_for(count), threads, 0, stream>>>(one, rows, value);
    RINGLAB_CUDA_LAUNCHED("fill_kernel");
}

void clear_tokens(const Extent& extent, const View& tensor, const std::int32_t* tokens, std::int64_t count,
                  cudaStream_t stream) {
    const Extent cleared{extent.batch, count, extent.heads, extent.dim};
    const auto elements = cleared.batch * cleared.tokens * cleared.heads * cleared.dim;
    if (elements == 0) return;
    clear_kernel<<<blocks_for(elements), threads, 0, stream>>>(cleared, tensor, tokens);
    RINGLAB_CUDA_LAUNCHED("clear_kernel");
}

}  // namespace ringlab::gpu
