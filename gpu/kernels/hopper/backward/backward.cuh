#pragma once

#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/hopper/backward/backward_consumer.cuh"
#include "gpu/kernels/hopper/backward/backward_producer.cuh"
#include "gpu/kernels/hopper/backward/backward_query_gradient.cuh"

// Backward pass of one attend on sm_90a; the formulas are those of the portable backward.cuh.
//
// A thread block stays on a tile of 128 keys of one kv head, and goes over the query tiles of all query heads that read
// it.
//
// Two warpgroups compute, 64 keys each. They compute S^T = K Q^T and dP^T = V dO^T. In registers, the rounded results
// are already the left operands of dV += P^T dO and dK += dS^T Q. So dK and dV stay in registers and are written once.
// dQ is a sum over keys: dS goes through shared memory, and each warpgroup computes a part of dQ^T = K^T dS^T over all
// keys. These fp32 parts go to shared memory, from where the bulk copy engine adds them to global memory.
//
// A third warpgroup serves the other two: warp 0 loads Q, dO and the statistics of rows, the other warps add the parts
// of dQ.
//
// Split dims (head dim 256): dK and dV of 64 keys take all registers of both warpgroups. Both warpgroups work on the
// same 64 keys and compute all of S and dP, and each has half of the dims of dK, dV and dQ. They exchange nothing, but
// tell each other when they have finished with a stage. Each puts its parts of dQ into that half of dO and Q that only
// it still reads.
//
// Overlap: a warpgroup issues its products in the order S, dQ of the step before, dP, dV, dK.
//
//     while this product runs     the warpgroup computes or copies
//     dQ of the step before       exp2
//     dP                          the part of dQ, to shared memory
//     dV                          dS
//
// The dS of the other warpgroup, which dQ needs too, was stored long before. With split dims there are not enough
// registers for this order. It is then S, dP, dV, dQ, dK, with exp2 during dP and the copy of dQ during dK. While one
// warpgroup waits, the products of the other run.

namespace ringlab::gpu::hopper {

template <class T, class Config, bool rewrite, class Params>
__global__ void __launch_bounds__(backward_threads, 1) backward_kernel(const __grid_constant__ Params all) {
    using Layout = BackwardLayout<Config>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);

    if (threadIdx.x == 0) {
        BackwardBarriers<Config>{base + Layout::barriers}.initialise();
        fence_barrier_initialisation();
        for (const auto* map : {&all.q, &all.k, &all.v, &all.dout, &all.dq}) prefetch_map(*map);
    }
    // Looked up while the first warp initialises barriers. No launch writes the work list.
    if (threadIdx.x == 32) *reinterpret_cast<Share*>(shared + Layout::share) = share_of_block(all);
    device::await_launch_before();
    __syncthreads();

    if (warp < 4) {
        shrink_registers<24>();
        const Share share = load_share(base + Layout::share);
        if (share.steps == 0) return;
        if (warp == 0)
            load_queries<Config, DropsOut<Params>>(all, base, share);
        else if (threadIdx.x % 32 != 0)
            return;
        else if (!all.turns && warp <= 2)
            add_dq<Config>(all, base, share, warp - 1);
        else if (all.turns && warp <= adders_in_order<Config>)
            add_dq_in_order<Config>(all, base, share, warp - 1);
    } else {
        grow_registers<240>();
        compute<T, Config, rewrite>(all, base, load_share(base + Layout::share), warp / 4 - 1);
        tell_end(all, load_share(base + Layout::share));
        if (!all.fused.blocks) device::let_next_launch_begin();  // a fused launch waits for other streams
    }
}

template <class Config>
BackwardKernelParams kernel_params(const BackwardLaunch& launch, DType dtype) {
    const BackwardParams& params = launch.params;
    const Geometry& g = params.geometry;
    const int kv_heads = g.query_heads / g.group;
    const auto map = [&](const Input& input, int tokens, int heads, int box_tokens) {
        return make_tensor_map({input.data, dtype, input.strides}, {g.batch, tokens, heads, input.dim}, box_tokens);
    };
    BackwardKernelParams all{
        .q = map(params.q, g.seeing_tokens, g.query_heads, Config::rows),
        .k = {},
        .v = {},
        .dout = map(params.dout, g.seeing_tokens, g.query_heads, Config::rows),
        .dq = make_tensor_map({params.dq.data, DType::fp32, params.dq.strides},
                              {g.batch, g.query_tokens, g.query_heads, params.q.dim}, DqPart<Config>::added_rows),
        .params = params,
        .fused = launch.fused,
        .order = launch.order,
        .turns = launch.turns,
        .flags = nullptr};
    if (launch.fused.blocks) return all;
    all.k = map(params.k, g.key_tokens, kv_heads, Config::keys);
    all.v = map(params.v, g.key_tokens, kv_heads, Config::keys);
    return all;
}

template <class T, class Config, bool rewrite, class Params>
void enqueue_backward(const Params& params, int blocks_per_item, cudaStream_t stream) {
    const Geometry& g = params.params.geometry;
    const int heads = params.fused.blocks ? params.fused.heads : g.query_heads / g.group;
    launch_chained(backward_kernel<T, Config, rewrite, Params>, "backward kernel for sm_90a",
                   heads * g.batch * params.params.work.count, blocks_per_item, backward_threads,
                   BackwardLayout<Config>::bytes, params, stream);
}

template <class Config, class Launch>
void launch_backward_with(const Launch& launch, DType dtype, cudaStream_t stream) {
    if (launch.params.work.count == 0) return;
    auto params = [&] {
        const auto plain = kernel_params<Config>(launch, dtype);
        if constexpr (DropsOut<Launch>)
            return Dropping<BackwardKernelParams>{plain, launch.dropout};
        else
            return plain;
    }();
    const auto of_type = [&]<class T>() {
        if (launch.params.rule.rewrite)
            enqueue_backward<T, Config, true>(params, launch.blocks_per_item, stream);
        else
            enqueue_backward<T, Config, false>(params, launch.blocks_per_item, stream);
    };
    const auto enqueue = [&] {
        if (dtype == DType::bf16)
            of_type.template operator()<__nv_bfloat16>();
        else
            of_type.template operator()<__half>();
    };
    if (!launch.turns) return enqueue();
    const Geometry& g = launch.params.geometry;
    const auto flags = static_cast<std::size_t>(g.batch) * static_cast<std::size_t>(g.query_heads) *
                       static_cast<std::size_t>((g.query_tokens + Config::rows - 1) / Config::rows);
    params.flags = launch.semaphores;
    if (!params.flags)
        RINGLAB_CUDA(cudaMallocAsync(reinterpret_cast<void**>(&params.flags), flags * sizeof(int), stream));
    RINGLAB_CUDA(cudaMemsetAsync(params.flags, 0, flags * sizeof(int), stream));
    enqueue();
    if (!launch.semaphores) RINGLAB_CUDA(cudaFreeAsync(params.flags, stream));
}

template <DimClass dims, class Launch>
void launch_backward(const Launch& launch, DType dtype, cudaStream_t stream) {
    launch_backward_with<BackwardConfig<dims>>(launch, dtype, stream);
}

}  // namespace ringlab::gpu::hopper
