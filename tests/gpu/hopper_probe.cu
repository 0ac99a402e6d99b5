#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/hopper/ptx/bulk_copy.cuh"
#include "gpu/kernels/hopper/ptx/tensor_map.hpp"
#include "gpu/kernels/hopper/ptx/wgmma.cuh"
#include "tests/gpu/hopper_probe.hpp"

#include <iterator>
#include <utility>

namespace ringlab::tests {
namespace {

using namespace gpu;
using namespace gpu::hopper;

extern __shared__ __align__(1024) unsigned char shared[];

constexpr int threads = 256;  // two warpgroups
constexpr int a_bytes = probe_rows * probe_depth * 2;

__device__ Barrier first_barrier(std::uint32_t address) {
    const Barrier barrier{address};
    if (threadIdx.x == 0) {
        barrier.initialise(1);
        fence_barrier_initialisation();
    }
    __syncthreads();
    return barrier;
}

template <class T, Source a_source, Source b_source, int n>
__global__ void __launch_bounds__(threads, 1)
    product_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                   const T* a_data, float* d_data) {
    constexpr int a_tile_rows = a_source == Source::rows_summed ? probe_depth : probe_rows;
    constexpr int b_tile_rows = b_source == Source::rows_summed ? probe_depth : n;
    constexpr int a_columns = a_source == Source::rows_summed ? probe_rows : probe_depth;
    constexpr int b_columns = b_source == Source::rows_summed ? n : probe_depth;
    constexpr Order a_order = a_source == Source::rows_summed ? Order::rows_summed : Order::rows_outer;
    constexpr Order b_order = b_source == Source::rows_summed ? Order::rows_summed : Order::rows_outer;
    const std::uint32_t a_tile = shared_address(shared), b_tile = a_tile + a_bytes;
    const Barrier barrier = first_barrier(b_tile + n * probe_depth * 2);
    if (threadIdx.x == 0) {
        barrier.arrive_and_expect(a_bytes + n * probe_depth * 2);
        for (int c = 0; c < a_columns; c += 64) load_box(a_tile + c * a_tile_rows * 2, a_map, barrier, c, 0, 0, 0);
        for (int c = 0; c < b_columns; c += 64) load_box(b_tile + c * b_tile_rows * 2, b_map, barrier, c, 0, 0, 0);
    }
    barrier.wait(0);

    const int group = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
    const int row = group * 64 + thread / 32 * 16 + thread % 32 / 4, column = 2 * (thread % 4);
    constexpr int depth = probe_depth / 16;
    const Operand<b_order> b(b_tile, b_tile_rows);
    float d[n / 2];
    fence_products();
    if constexpr (a_source == Source::registers) {
        std::uint32_t a[depth][4], second[depth / 2][4];
        for (int k = 0; k < depth; ++k)
            for (int i = 0; i < 4; ++i)
                a[k][i] = *reinterpret_cast<const std::uint32_t*>(a_data + (row + i % 2 * 8) * probe_depth + 16 * k +
                                                                  i / 2 * 8 + column);
        for (int k = 0; k < depth / 2; ++k)
            for (int i = 0; i < 4; ++i) second[k][i] = a[depth / 2 + k][i];
        multiply<T, b_tile_rows>(d, a, b, false);
        // Of a transposed tile the second half starts further down, of another further right.
        const auto b_half = b_order == Order::rows_summed ? b.after_rows(probe_depth / 2)
                                                          : b.after_stretches(probe_depth / 2 / 64, b_tile_rows);
        multiply<T, b_tile_rows>(d, second, b_half, true);
    } else {
        Operand<a_order> a(a_tile, a_tile_rows, a_order == Order::rows_outer ? group * 64 : 0);
        if (a_order == Order::rows_summed) a = a.after_stretches(group, a_tile_rows);
        multiply<T, depth, a_tile_rows, b_tile_rows>(d, a, b, false);
        const auto a_half = a_order == Order::rows_summed ? a.after_rows(probe_depth / 2)
                                                          : a.after_stretches(probe_depth / 2 / 64, a_tile_rows);
        const auto b_half = b_order == Order::rows_summed ? b.after_rows(probe_depth / 2)
                                                          : b.after_stretches(probe_depth / 2 / 64, b_tile_rows);
        multiply<T, depth / 2, a_tile_rows, b_tile_rows>(d, a_half, b_half, true);
    }
    commit_products();
    wait_products<0>();
    pin(d);
#pragma unroll
    for (int j = 0; j < n / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) d_data[(row + i / 2 * 8) * n + 8 * j + column + i % 2] = d[4 * j + i];
}

CUtensorMap matrix_map(const void* data, DType dtype, int rows, int columns) {
    return make_tensor_map({data, dtype, {0, columns, 0}}, {1, rows, 1, columns}, rows);
}

template <class T>
constexpr bool is_probed(Source b, int n) {
    return has_width(std::is_same_v<T, __half> ? DType::fp16 : DType::bf16, b, n);
}

template <class T, Source a, Source b, int n>
void launch_product(DType dtype, const void* a_data, const void* b_data, float* d) {
    if constexpr (is_probed<T>(b, n)) {
        const auto a_map = a == Source::rows_summed ? matrix_map(a_data, dtype, probe_depth, probe_rows)
                                                    : matrix_map(a_data, dtype, probe_rows, probe_depth);
        const auto b_map = b == Source::rows_summed ? matrix_map(b_data, dtype, probe_depth, n)
                                                    : matrix_map(b_data, dtype, n, probe_depth);
        constexpr int bytes = a_bytes + n * probe_depth * 2 + 8;
        RINGLAB_CUDA(
            cudaFuncSetAttribute(product_kernel<T, a, b, n>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        product_kernel<T, a, b, n><<<1, threads, bytes>>>(a_map, b_map, static_cast<const T*>(a_data), d);
        RINGLAB_CUDA_LAUNCHED("product_kernel");
    }
}

template <class T, Source a, Source b, std::size_t... i>
void for_width(int n, DType dtype, const void* a_data, const void* b_data, float* d, std::index_sequence<i...>) {
    ((n == probe_widths[i] ? launch_product<T, a, b, probe_widths[i]>(dtype, a_data, b_data, d) : void()), ...);
}

template <class T>
void for_sources(const ProbeShape& s, DType dtype, const void* a, const void* b, float* d) {
    constexpr auto widths = std::make_index_sequence<std::size(probe_widths)>();
    using enum Source;
    if (s.b == rows_outer) {
        if (s.a == rows_outer) for_width<T, rows_outer, rows_outer>(s.n, dtype, a, b, d, widths);
        if (s.a == rows_summed) for_width<T, rows_summed, rows_outer>(s.n, dtype, a, b, d, widths);
        if (s.a == registers) for_width<T, registers, rows_outer>(s.n, dtype, a, b, d, widths);
    } else {
        if (s.a == rows_outer) for_width<T, rows_outer, rows_summed>(s.n, dtype, a, b, d, widths);
        if (s.a == rows_summed) for_width<T, rows_summed, rows_summed>(s.n, dtype, a, b, d, widths);
        if (s.a == registers) for_width<T, registers, rows_summed>(s.n, dtype, a, b, d, widths);
    }
}

constexpr int box_rows = 64;

__global__ void load_kernel(const __grid_constant__ CUtensorMap map, int dim, int token, int head, int batch,
                            std::uint16_t* to) {
    const std::uint32_t tile = shared_address(shared);
    const Barrier barrier = first_barrier(tile + box_rows * 128);
    if (threadIdx.x == 0) {
        barrier.arrive_and_expect(box_rows * 128);
        load_box(tile, map, barrier, dim, token, head, batch);
    }
    barrier.wait(0);
    for (int i = static_cast<int>(threadIdx.x); i < box_rows * 64; i += static_cast<int>(blockDim.x)) {
        const int row = i / 64, chunk = i % 64 / 8;
        to[i] = reinterpret_cast<const std::uint16_t*>(shared)[row * 64 + (chunk ^ row % 8) * 8 + i % 8];
    }
}

__global__ void add_box_kernel(const __grid_constant__ CUtensorMap map, int dim, int token, int head, int batch) {
    constexpr int columns = 32;
    auto* values = reinterpret_cast<float*>(shared);
    for (int i = static_cast<int>(threadIdx.x); i < box_rows * columns; i += static_cast<int>(blockDim.x)) {
        const int row = i / columns, chunk = i % columns / 4;
        values[row * columns + (chunk ^ row % 8) * 4 + i % 4] = static_cast<float>(i + 1);
    }
    fence_shared_for_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        add_box(map, shared_address(shared), dim, token, head, batch);
        commit_stores();
        wait_stores_done<0>();
    }
}

}  // namespace

void probe_product(const ProbeShape& shape, DType dtype, const void* a, const void* b, float* d) {
    dtype == DType::bf16 ? for_sources<__nv_bfloat16>(shape, dtype, a, b, d)
                         : for_sources<__half>(shape, dtype, a, b, d);
    RINGLAB_CUDA(cudaDeviceSynchronize());
}

void probe_load(const ConstView& from, const Extent& extent, int dim, int token, int head, int batch,
                std::uint16_t* to) {
    load_kernel<<<1, 128, box_rows * 128 + 8>>>(make_tensor_map(from, extent, box_rows), dim, token, head, batch, to);
    RINGLAB_CUDA_LAUNCHED("load_kernel");
    RINGLAB_CUDA(cudaDeviceSynchronize());
}

void probe_add_box(const View& to, const Extent& extent, int dim, int token, int head, int batch) {
    add_box_kernel<<<1, 128, box_rows * 128>>>(make_tensor_map(to, extent, box_rows), dim, token, head, batch);
    RINGLAB_CUDA_LAUNCHED("add_box_kernel");
    RINGLAB_CUDA(cudaDeviceSynchronize());
}

}  // namespace ringlab::tests
