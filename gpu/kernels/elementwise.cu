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

/// The row of this warp, or of `count` the i-th: heads fastest, then tokens, as tensors usually lie.
__device__ Row own_row(const Sizes& sizes, int count = 1, int i = 0) {
    const std::int64_t row =
        (static_cast<std::int64_t>(blockIdx.x) * rows_per_block + static_cast<int>(threadIdx.x) / 32) * count + i;
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

__device__ void write_statistics(const StatisticsParams& params, const Row& row, float delta) {
    constexpr float log2_e = 1.4426950408889634f;
    const float lse = value_of(params.lse, row.batch, row.token, row.head);
    params.statistics[row_index(params.statistics_strides, row.batch, row.token, row.head)] =
        make_float2(lse == minus_infinity() ? -minus_infinity() : lse * log2_e, delta);
}

__device__ float sum_over_lanes(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

__global__ void __launch_bounds__(block_threads) statistics_kernel(const __grid_constant__ StatisticsParams params) {
    const Row row = own_row(params.sizes);
    if (!row.exists) return;
    float delta = 0;
    for_own_pairs(params.sizes, [&](int column, int count) {
        const float2 o =
            load_pair(params.o, row_index(params.o.strides, row.batch, row.token, row.head) + column, count);
        const float2 dout =
            load_pair(params.dout, row_index(params.dout.strides, row.batch, row.token, row.head) + column, count);
        delta += o.x * dout.x + o.y * dout.y;
    });
    delta = sum_over_lanes(delta);
    if (is_row_leader()) write_statistics(params, row, delta);
}

template <class T>
__device__ float2 to_floats(std::uint32_t bits);
template <>
__device__ float2 to_floats<__nv_bfloat16>(std::uint32_t bits) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits));
}
template <>
__device__ float2 to_floats<__half>(std::uint32_t bits) {
    return __half22float2(reinterpret_cast<const __half2&>(bits));
}

__device__ float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }

template <class T>
__device__ float4 load_four(const T* from) {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    const float2 low = to_floats<T>(bits.x), high = to_floats<T>(bits.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

constexpr int rows_per_warp = 4;

/// The same for four neighbours at a time; a warp takes four rows, so that loads of several are under way together.
template <class O, class Dout>
__global__ void __launch_bounds__(block_threads)
    statistics_by_four_kernel(const __grid_constant__ StatisticsParams params) {
    Row rows[rows_per_warp];
    const O* o[rows_per_warp];
    const Dout* dout[rows_per_warp];
    float delta[rows_per_warp] = {};
#pragma unroll
    for (int i = 0; i < rows_per_warp; ++i) {
        rows[i] = own_row(params.sizes, rows_per_warp, i);
        // One that does not exist reads another's.
        const Row row = rows[i].exists ? rows[i] : rows[0];
        o[i] = static_cast<const O*>(params.o.data) + row_index(params.o.strides, row.batch, row.token, row.head);
        dout[i] =
            static_cast<const Dout*>(params.dout.data) + row_index(params.dout.strides, row.batch, row.token, row.head);
    }
    if (!rows[0].exists) return;
    for (int column = 4 * (static_cast<int>(threadIdx.x) % 32); column < params.sizes.dim; column += 128) {
        float4 x[rows_per_warp], y[rows_per_warp];
#pragma unroll
        for (int i = 0; i < rows_per_warp; ++i) {
            x[i] = load_four(o[i] + column);
            y[i] = load_four(dout[i] + column);
        }
#pragma unroll
        for (int i = 0; i < rows_per_warp; ++i)
            delta[i] += x[i].x * y[i].x + x[i].y * y[i].y + (x[i].z * y[i].z + x[i].w * y[i].w);
    }
#pragma unroll
    for (int i = 0; i < rows_per_warp; ++i) {
        delta[i] = sum_over_lanes(delta[i]);
        if (is_row_leader() && rows[i].exists) write_statistics(params, rows[i], delta[i]);
    }
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
void launch_by_row(void (*kernel)(Params), const char* name, const Params& params, cudaStream_t stream,
                   int warp_rows = 1) {
    const auto rows = params.sizes.batch * params.sizes.tokens * params.sizes.heads;
    const auto block_rows = rows_per_block * warp_rows;
    launch(kernel, name, dim3(static_cast<unsigned>((rows + block_rows - 1) / block_rows)), block_threads, 0, params,
           stream);
}

/// Whether data and strides allow access to four neighbours at once.
bool fours_fit(const Elements& tensor) {
    const auto bytes = 4 * layouts::bytes_of(tensor.dtype);
    const Strides& strides = tensor.strides;
    return reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
           strides.batch % 4 == 0 && strides.token % 4 == 0 && strides.head % 4 == 0;
}

template <class O>
auto statistics_by_four(DType dout) {
    return dout == DType::bf16   ? statistics_by_four_kernel<O, __nv_bfloat16>
           : dout == DType::fp16 ? statistics_by_four_kernel<O, __half>
                                 : statistics_by_four_kernel<O, float>;
}

}  // namespace

void launch_finalise(const FinaliseParams& params, cudaStream_t stream) {
    launch_by_row(finalise_kernel, "finalise kernel", params, stream);
}
void launch_merge(const MergeParams& params, cudaStream_t stream) {
    launch_by_row(merge_kernel, "merge kernel", params, stream);
}
void launch_statistics(const StatisticsParams& params, cudaStream_t stream) {
    if (params.sizes.dim % 4 != 0 || !fours_fit(params.o) || !fours_fit(params.dout))
        return launch_by_row(statistics_kernel, "statistics kernel", params, stream);
    const auto kernel = params.o.dtype == DType::fp32   ? statistics_by_four<float>(params.dout.dtype)
                        : params.o.dtype == DType::bf16 ? statistics_by_four<__nv_bfloat16>(params.dout.dtype)
                                                        : statistics_by_four<__half>(params.dout.dtype);
    launch_by_row(kernel, "statistics kernel", params, stream, rows_per_warp);
}
void launch_combine(const CombineParams& params, cudaStream_t stream) {
    launch_by_row(combine_kernel, "add or convert kernel", params, stream);
}

}  // namespace ringlab::gpu
