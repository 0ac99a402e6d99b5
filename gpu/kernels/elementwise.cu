#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/tile.cuh"

// Kernels that take each row, or each element, on its own: they move bytes. A warp takes a row.

namespace ringlab::gpu {
namespace {

using namespace device;

constexpr int block_threads = 256, rows_per_block = block_threads / 32;

struct Row {
    int batch, token, head;
    bool exists;
};

/// The row of this warp: heads fastest, then tokens, as tensors usually lie.
__device__ Row own_row(const Sizes& sizes) {
    const std::int64_t row =
        static_cast<std::int64_t>(blockIdx.x) * rows_per_block + static_cast<int>(threadIdx.x) / 32;
    const std::int64_t token = row / sizes.heads;
    return {static_cast<int>(token / sizes.tokens), static_cast<int>(token % sizes.tokens),
            static_cast<int>(row % sizes.heads), row < sizes.batch * sizes.tokens * sizes.heads};
}

/// Calls visit(column, count) for this lane's pairs of a row, of whose dims `count` are left from `column` on.
template <class Visit>
__device__ void for_own_pairs(const Sizes& sizes, Visit visit) {
    for (int column = 2 * (static_cast<int>(threadIdx.x) % 32); column < sizes.dim; column += 64)
        visit(column, static_cast<int>(sizes.dim) - column);
}

__device__ bool is_row_leader() { return threadIdx.x % 32 == 0; }

__global__ void __launch_bounds__(block_threads) finalise_kernel(const __grid_constant__ FinaliseParams params) {
    const auto [batch, token, head, exists] = own_row(params.sizes);
    if (!exists) return;
    const float m = value_of(params.carry_m, batch, token, head), l = value_of(params.carry_l, batch, token, head);
    const float inverse = l > 0 ? 1.0f / l : 0.0f;
    if (is_row_leader() && params.lse.data) value_of(params.lse, batch, token, head) = natural_lse(m, l);
    for_own_pairs(params.sizes, [&](int column, int count) {
        const float2 o =
            load_pair(params.carry_o, row_index(params.carry_o.strides, batch, token, head) + column, count);
        for (const Elements& result : {params.o, params.o_rounded})
            if (result.data)
                store_pair(result, row_index(result.strides, batch, token, head) + column, o.x * inverse, o.y * inverse,
                           count);
    });
}

__global__ void __launch_bounds__(block_threads) merge_kernel(const __grid_constant__ MergeParams params) {
    const auto [batch, token, head, exists] = own_row(params.sizes);
    if (!exists) return;
    const float partial_lse = value_of(params.partial_lse, batch, token, head);
    const float lse = params.first ? minus_infinity() : value_of(params.lse, batch, token, head);
    const bool replace = lse == minus_infinity();
    // Nothing to add: and two infinities must not meet in a difference. A first block that is empty still sets o to 0.
    if (partial_lse == minus_infinity() && !params.first) return;
    const float difference = partial_lse - lse;
    const float weight = replace ? 1.0f : 1.0f / (1.0f + expf(-difference));
    // log(1 + e^d) without overflow.
    const float softplus = fmaxf(difference, 0.0f) + log1pf(expf(-fabsf(difference)));
    __syncwarp();  // all lanes have read lse
    if (is_row_leader()) value_of(params.lse, batch, token, head) = replace ? partial_lse : lse + softplus;
    for_own_pairs(params.sizes, [&](int column, int count) {
        const auto index = row_index(params.o.strides, batch, token, head) + column;
        const float2 partial =
            load_pair(params.partial_o, row_index(params.partial_o.strides, batch, token, head) + column, count);
        const float2 o = replace ? partial : load_pair(params.o, index, count);
        store_pair(params.o, index, o.x + weight * (partial.x - o.x), o.y + weight * (partial.y - o.y), count);
    });
}

__global__ void __launch_bounds__(block_threads) statistics_kernel(const __grid_constant__ StatisticsParams params) {
    const auto [batch, token, head, exists] = own_row(params.sizes);
    if (!exists) return;
    float delta = 0;
    for_own_pairs(params.sizes, [&](int column, int count) {
        const float2 o = load_pair(params.o, row_index(params.o.strides, batch, token, head) + column, count);
        const float2 dout = load_pair(params.dout, row_index(params.dout.strides, batch, token, head) + column, count);
        delta += o.x * dout.x + o.y * dout.y;
    });
    for (int offset = 16; offset > 0; offset /= 2) delta += __shfl_xor_sync(~0u, delta, offset);
    if (!is_row_leader()) return;
    constexpr float log2_e = 1.4426950408889634f;
    const float lse = value_of(params.lse, batch, token, head);
    params.statistics[row_index(params.statistics_strides, batch, token, head)] =
        make_float2(lse == minus_infinity() ? -minus_infinity() : lse * log2_e, delta);
}

__global__ void __launch_bounds__(block_threads) combine_kernel(const __grid_constant__ CombineParams params) {
    const auto [batch, token, head, exists] = own_row(params.sizes);
    if (!exists) return;
    for_own_pairs(params.sizes, [&](int column, int count) {
        const auto index = row_index(params.destination.strides, batch, token, head) + column;
        float2 x = load_pair(params.source, row_index(params.source.strides, batch, token, head) + column, count);
        if (params.add) {
            const float2 old = load_pair(params.destination, index, count);
            x = make_float2(old.x + x.x, old.y + x.y);
        }
        store_pair(params.destination, index, x.x, x.y, count);
    });
}

template <class Params>
void launch_by_row(void (*kernel)(Params), const char* name, const Params& params, cudaStream_t stream) {
    const auto rows = params.sizes.batch * params.sizes.tokens * params.sizes.heads;
    launch(kernel, name, dim3(static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block)), block_threads, 0,
           params, stream);
}

}  // namespace

void launch_finalise(const FinaliseParams& params, cudaStream_t stream) {
    launch_by_row(finalise_kernel, "finalise kernel", params, stream);
}
void launch_merge(const MergeParams& params, cudaStream_t stream) {
    launch_by_row(merge_kernel, "merge kernel", params, stream);
}
void launch_statistics(const StatisticsParams& params, cudaStream_t stream) {
    launch_by_row(statistics_kernel, "statistics kernel", params, stream);
}
void launch_combine(const CombineParams& params, cudaStream_t stream) {
    launch_by_row(combine_kernel, "add or convert kernel", params, stream);
}

}  // namespace ringlab::gpu
