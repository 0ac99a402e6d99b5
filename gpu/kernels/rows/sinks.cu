#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/elementwise_params.hpp"

namespace ringlab::gpu {
namespace {

using namespace device;

constexpr int sink_threads = 256;

/// A warp for each row.
__global__ void __launch_bounds__(sink_threads) add_sinks_kernel(const __grid_constant__ AddSinksParams params) {
    const auto& [batches, tokens, heads, dim] = params.sizes;
    const std::int64_t row = std::int64_t{blockIdx.x} * (sink_threads / 32) + threadIdx.x / 32;
    if (row >= batches * tokens * heads) return;
    const auto token = row % tokens, head = row / tokens % heads, batch = row / tokens / heads;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float& own = params.lse.data[row_index(params.lse.strides, batch, token, head)];
    const float lse = own, sink = params.sinks[head];
    // As reference/features/sinks.hpp: either may be -inf, and an lse that is NaN stays it.
    const float larger = lse > sink ? lse : sink, smaller = lse > sink ? sink : lse;
    const float with = smaller == minus_infinity() ? larger : larger + log1pf(expf(smaller - larger));
    const float share = lse == with ? 1.0f : expf(lse - with);
    __syncwarp();
    if (lane == 0) own = with;
    for (int column = 2 * lane; column < dim; column += 64) {
        const auto count = static_cast<int>(dim) - column;
        const auto at = row_index(params.o.strides, batch, token, head) + column;
        float2 pair = load_pair(params.o, at, count);
        pair.x *= share;
        pair.y *= share;
        store_pair(params.o, at, pair.x, pair.y, count);
        if (params.o_rounded.data)
            store_pair(params.o_rounded, row_index(params.o_rounded.strides, batch, token, head) + column, pair.x,
                       pair.y, count);
    }
}

/// A block for each head.
__global__ void __launch_bounds__(sink_threads)
    sink_gradient_kernel(const __grid_constant__ SinkGradientParams params) {
    __shared__ float sums[sink_threads];
    constexpr float log2_e = 1.4426950408889634f;
    const std::int64_t head = blockIdx.x;
    const float sink = params.sinks[head] * log2_e;
    float sum = 0;
    for (std::int64_t row = threadIdx.x; row < params.batch * params.tokens; row += sink_threads) {
        const auto batch = row / params.tokens, token = row % params.tokens;
        const float2 of_row = params.statistics[row_index(params.strides, batch, token, head)];
        sum -= exp2f(sink - of_row.x) * of_row.y;  // of_row.x is +inf for a row that sees nothing, never -inf
    }
    sums[threadIdx.x] = sum;
    for (int half = sink_threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) params.gradient[head] = sums[0];
}

}  // namespace

void launch_add_sinks(const AddSinksParams& params, cudaStream_t stream) {
    constexpr int rows_per_block = sink_threads / 32;
    const auto rows = params.sizes.batch * params.sizes.tokens * params.sizes.heads;
    launch(add_sinks_kernel, "sink kernel", dim3(static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block)),
           sink_threads, 0, params, stream);
}

void launch_sink_gradient(const SinkGradientParams& params, cudaStream_t stream) {
    launch(sink_gradient_kernel, "sink gradient kernel", dim3(static_cast<unsigned>(params.heads)), sink_threads, 0,
           params, stream);
}

}  // namespace ringlab::gpu
