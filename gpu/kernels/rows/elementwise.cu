#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/elementwise_params.hpp"

#include <algorithm>

// Kernels that take each row, or each element, on its own: they move bytes. Where rows can be read four elements at a
// time, 16 lanes take a few rows, so that loads of several are under way together; elsewhere a warp takes one. Rows are
// counted in 32 bits: divisions by 64-bit sizes took longer than the bytes.

namespace ringlab::gpu {
namespace {

using namespace device;

constexpr int block_threads = 256, rows_per_block = block_threads / 32;

struct Row {
    int batch, token, head;
    bool exists;
};

__device__ Row rows_below(const Sizes& sizes, std::uint32_t row) {
    const auto heads = static_cast<std::uint32_t>(sizes.heads), tokens = static_cast<std::uint32_t>(sizes.tokens);
    const std::uint32_t token = row / heads;
    return {static_cast<int>(token / tokens), static_cast<int>(token % tokens), static_cast<int>(row % heads),
            row < static_cast<std::uint64_t>(sizes.batch) * tokens * heads};
}

/// The row of this warp: heads fastest, then tokens, as tensors usually lie.
__device__ Row own_row(const Sizes& sizes) { return rows_below(sizes, blockIdx.x * rows_per_block + threadIdx.x / 32); }

/// Calls visit(column, count) for this lane's pairs of a row, of whose dims `count` are left from `column` on.
template <class Visit>
__device__ void for_own_pairs(const Sizes& sizes, Visit visit) {
    for (int column = 2 * (static_cast<int>(threadIdx.x) % 32); column < sizes.dim; column += 64)
        visit(column, static_cast<int>(sizes.dim) - column);
}

__device__ bool is_row_leader() { return threadIdx.x % 32 == 0; }

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

__device__ void write_statistics(const StatisticsParams& params, const Row& row, float lse, float delta) {
    constexpr float log2_e = 1.4426950408889634f;
    params.statistics[row_index(params.statistics_strides, row.batch, row.token, row.head)] =
        make_float2(lse == minus_infinity() ? -minus_infinity() : lse * log2_e, delta);
}

/// What an element adds to delta. A row that sees nothing has o = 0, and delta = 0 whatever is in its dout.
__device__ float part_of_delta(float o, float dout) { return o == 0 ? 0.0f : o * dout; }

template <int lanes = 32>
__device__ float sum_over_lanes(float x) {
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
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
        delta += part_of_delta(o.x, dout.x) + part_of_delta(o.y, dout.y);
    });
    delta = sum_over_lanes(delta);
    if (is_row_leader()) write_statistics(params, row, value_of(params.lse, row.batch, row.token, row.head), delta);
    if (!params.zeroed.data) return;
    __syncwarp();  // all lanes have read o, which may lie there
    Sizes sizes = params.sizes;
    sizes.dim = params.zeroed_dim;
    for_own_pairs(sizes, [&](int column, int count) {
        store_pair(params.zeroed, row_index(params.zeroed.strides, row.batch, row.token, row.head) + column, 0, 0,
                   count);
    });
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

__device__ void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

template <class T>
__device__ void store_four(T* to, float4 x) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
}

// Rows by fours: 16 lanes take 64 columns at a time of as many tokens of a head, whose statistics lie together.
constexpr int row_lanes = 16, rows_at_once = 4, row_columns = 4 * row_lanes;
constexpr int groups_of_block = block_threads / row_lanes;

/// Rows that this lane takes a part in: the `group`-th, heads fastest.
__device__ Row row_of_group(const Sizes& sizes, std::uint32_t group, int i) {
    const auto heads = static_cast<std::uint32_t>(sizes.heads),
               groups = (static_cast<std::uint32_t>(sizes.tokens) + rows_at_once - 1) / rows_at_once;
    const std::uint32_t of_head = group / heads;
    const auto batch = static_cast<int>(of_head / groups),
               token = static_cast<int>(of_head % groups) * rows_at_once + i;
    return {batch, token, static_cast<int>(group % heads), batch < sizes.batch && token < sizes.tokens};
}

__device__ std::uint32_t own_group(unsigned block) { return block * groups_of_block + threadIdx.x / row_lanes; }
__device__ int first_column_of_lane() { return 4 * (static_cast<int>(threadIdx.x) % row_lanes); }

/// Where a row begins; for one that does not exist, where the tensor does.
template <class T>
__device__ T* row_of(const Elements& tensor, const Row& row) {
    return static_cast<T*>(tensor.data) + (row.exists ? row_index(tensor.strides, row.batch, row.token, row.head) : 0);
}

template <class O, class Dout>
__global__ void __launch_bounds__(block_threads)
    statistics_by_four_kernel(const __grid_constant__ StatisticsParams params) {
    let_next_launch_begin();
    const std::uint32_t group = own_group(blockIdx.x);
    // The first lanes answer for a row each.
    const int lane = static_cast<int>(threadIdx.x) % row_lanes;
    const Row own = row_of_group(params.sizes, group, lane);
    const bool writes = lane < rows_at_once && own.exists;
    const float lse = writes ? value_of(params.lse, own.batch, own.token, own.head) : 0.0f;

    Row rows[rows_at_once];
    const O* o[rows_at_once];
    const Dout* dout[rows_at_once];
    float delta[rows_at_once] = {};
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
        rows[i] = row_of_group(params.sizes, group, i);
        o[i] = row_of<const O>(params.o, rows[i]);
        dout[i] = row_of<const Dout>(params.dout, rows[i]);
    }
    for (int column = first_column_of_lane(); column < params.sizes.dim; column += row_columns) {
        float4 x[rows_at_once], y[rows_at_once];
#pragma unroll
        for (int i = 0; i < rows_at_once; ++i) {
            x[i] = load_four(o[i] + column);
            y[i] = load_four(dout[i] + column);
        }
#pragma unroll
        for (int i = 0; i < rows_at_once; ++i)
            delta[i] += part_of_delta(x[i].x, y[i].x) + part_of_delta(x[i].y, y[i].y) +
                        (part_of_delta(x[i].z, y[i].z) + part_of_delta(x[i].w, y[i].w));
    }
    float own_delta = 0;
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
        delta[i] = sum_over_lanes<row_lanes>(delta[i]);
        if (lane == i) own_delta = delta[i];
    }
    if (writes) write_statistics(params, own, lse, own_delta);
    if (!params.zeroed.data) return;
        // If o lies there, this lane has read what it overwrites.
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i)
        if (rows[i].exists)
            for (int column = first_column_of_lane(); column < params.zeroed_dim; column += row_columns)
                store_four(row_of<float>(params.zeroed, rows[i]) + column, make_float4(0, 0, 0, 0));
}

__global__ void __launch_bounds__(block_threads) combine_kernel(const __grid_constant__ CombineParams params) {
    const auto [batch, token, head, exists] = own_row(params.sizes);
    if (!exists) return;
    for_own_pairs(params.sizes, [&](int column, int count) {
        const auto index = [&](const Elements& tensor) {
            return row_index(tensor.strides, batch, token, head) + column;
        };
        float2 x = load_pair(params.source, index(params.source), count);
        for (int i = 0; i < params.sum_count; ++i) {
            const float2 sum = load_pair(params.sums[i], index(params.sums[i]), count);
            x = make_float2(x.x + sum.x, x.y + sum.y);
        }
        store_pair(params.destination, index(params.destination), x.x, x.y, count);
    });
}

/// Tensors of the same types that one launch takes, each from some block on.
struct CombineList {
    static constexpr int most = 3;
    CombineParams tensors[most];
    unsigned first_block[most];
    int count;
};

template <class Destination, class Source>
__global__ void __launch_bounds__(block_threads) combine_by_four_kernel(const __grid_constant__ CombineList list) {
    await_launch_before();
    int tensor = 0;
    while (tensor + 1 < list.count && blockIdx.x >= list.first_block[tensor + 1]) ++tensor;
    const CombineParams& params = list.tensors[tensor];
    const std::uint32_t group = own_group(blockIdx.x - list.first_block[tensor]);
    Row rows[rows_at_once];
    Destination* to[rows_at_once];
    const Source* from[rows_at_once];
#pragma unroll
    for (int i = 0; i < rows_at_once; ++i) {
        rows[i] = row_of_group(params.sizes, group, i);
        to[i] = row_of<Destination>(params.destination, rows[i]);
        from[i] = row_of<const Source>(params.source, rows[i]);
    }
    for (int column = first_column_of_lane(); column < params.sizes.dim; column += row_columns) {
        float4 x[rows_at_once];
#pragma unroll
        for (int i = 0; i < rows_at_once; ++i) x[i] = load_four(from[i] + column);
        for (int s = 0; s < params.sum_count; ++s) {
            const Elements& of = params.sums[s];
            float4 sum[rows_at_once];
#pragma unroll
            for (int i = 0; i < rows_at_once; ++i)
                sum[i] = of.dtype == DType::fp32 ? load_four(row_of<const float>(of, rows[i]) + column)
                                                 : load_four(row_of<const Destination>(of, rows[i]) + column);
#pragma unroll
            for (int i = 0; i < rows_at_once; ++i)
                x[i] = make_float4(x[i].x + sum[i].x, x[i].y + sum[i].y, x[i].z + sum[i].z, x[i].w + sum[i].w);
        }
#pragma unroll
        for (int i = 0; i < rows_at_once; ++i)
            if (rows[i].exists) store_four(to[i] + column, x[i]);
    }
}

unsigned blocks_for(std::int64_t count, int count_of_block) {
    return static_cast<unsigned>((count + count_of_block - 1) / count_of_block);
}

unsigned blocks_for_groups(const Sizes& sizes) {
    return blocks_for(sizes.batch * sizes.heads * ((sizes.tokens + rows_at_once - 1) / rows_at_once), groups_of_block);
}

template <class Params>
void launch_by_row(void (*kernel)(Params), const char* name, const Params& params, cudaStream_t stream) {
    launch(kernel, name,
           dim3(blocks_for(params.sizes.batch * params.sizes.tokens * params.sizes.heads, rows_per_block)),
           block_threads, 0, params, stream);
}

/// Whether data and strides allow access to four neighbours at once.
bool fours_fit(const Elements& tensor) {
    const auto bytes = 4 * layouts::bytes_of(tensor.dtype);
    const Strides& strides = tensor.strides;
    return reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
           strides.batch % 4 == 0 && strides.token % 4 == 0 && strides.head % 4 == 0;
}

/// Calls visit.operator()<T>() for the element type.
template <class Visit>
auto for_type(DType dtype, Visit visit) {
    return dtype == DType::bf16   ? visit.template operator()<__nv_bfloat16>()
           : dtype == DType::fp16 ? visit.template operator()<__half>()
                                  : visit.template operator()<float>();
}

bool goes_by_fours(const CombineParams& params) {
    return params.sizes.dim % 4 == 0 && fours_fit(params.destination) && fours_fit(params.source) &&
           std::all_of(params.sums, params.sums + params.sum_count, fours_fit);
}

bool same_types(const CombineParams& a, const CombineParams& b) {
    return a.destination.dtype == b.destination.dtype && a.source.dtype == b.source.dtype;
}

void launch_list(CombineList& list, cudaStream_t stream) {
    unsigned blocks = 0;
    for (int i = 0; i < list.count; ++i) {
        list.first_block[i] = blocks;
        blocks += blocks_for_groups(list.tensors[i].sizes);
    }
    const auto kernel = for_type(list.tensors[0].destination.dtype, [&]<class Destination>() {
        return for_type(list.tensors[0].source.dtype,
                        [&]<class Source>() { return combine_by_four_kernel<Destination, Source>; });
    });
    launch_chained(kernel, "add or convert kernel", static_cast<int>(blocks), 1, block_threads, 0, list, stream);
}

}  // namespace

void launch_merge(const MergeParams& params, cudaStream_t stream) {
    launch_by_row(merge_kernel, "merge kernel", params, stream);
}
void launch_statistics(const StatisticsParams& params, cudaStream_t stream) {
    if (params.sizes.dim % 4 != 0 || params.zeroed_dim % 4 != 0 || !fours_fit(params.o) || !fours_fit(params.dout) ||
        !fours_fit(params.zeroed))
        return launch_by_row(statistics_kernel, "statistics kernel", params, stream);
    const auto kernel = for_type(params.o.dtype, [&]<class O>() {
        return for_type(params.dout.dtype, [&]<class Dout>() { return statistics_by_four_kernel<O, Dout>; });
    });
    launch(kernel, "statistics kernel", dim3(blocks_for_groups(params.sizes)), block_threads, 0, params, stream);
}
void launch_combine(std::span<const CombineParams> all, cudaStream_t stream) {
    CombineList list{};
    for (const auto& params : all) {
        if (!goes_by_fours(params)) {
            launch_by_row(combine_kernel, "add or convert kernel", params, stream);
            continue;
        }
        if (list.count > 0 && (list.count == CombineList::most || !same_types(list.tensors[0], params))) {
            launch_list(list, stream);
            list.count = 0;
        }
        list.tensors[list.count++] = params;
    }
    if (list.count > 0) launch_list(list, stream);
}

}  // namespace ringlab::gpu
