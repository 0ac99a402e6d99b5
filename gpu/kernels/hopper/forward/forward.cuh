#pragma once

#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/hopper/forward/forward_config.hpp"
#include "gpu/kernels/hopper/forward/forward_consumer.cuh"
#include "gpu/kernels/hopper/forward/forward_producer.cuh"

#include <algorithm>

// Forward pass of one attend on sm_90a, the work of gpu/kernels/portable/forward.cuh in the manner of FlashAttention-3
// (Shah et al. 2024, arXiv 2407.08608): one thread of the producer warpgroup fetches tiles by bulk copies; consumer
// warpgroups of 64 query rows multiply and take softmax, one warpgroup's softmax under the products of the other, and
// within a warpgroup the softmax of a tile under the product of P and V of the tile before.
//
// A block goes from unit to unit, a unit being a query tile of one head, in sections of heads whose K and V L2 holds,
// longest tile first, by a counter in global memory: whichever block is free takes the next. Partial key tiles come
// first in a unit; the loop over full ones has no test of elements.
//
// Where several blocks are one launch, a unit has a part for each of them, which the consumers are told one by one; O,
// m and l stay in registers from part to part. The producer waits for a block before it loads from it first.
//
// Two blocks may make a pair (a cluster): each does one of two query heads that read the same kv head, at the same
// query tile. They need the same K and V at the same time, of which each fetches half for both: a tile comes out of L2
// once. The first block of a pair asks the counter and tells the second.
//
// Every unit starts from nothing, and takes in the carry at its end: that is one merge, at the time of the store, and
// its rows are prefetched into L2 meanwhile.

namespace ringlab::gpu::hopper {

template <class T, class Config, bool rewrite, bool pairs>
__global__ void __launch_bounds__(128 * (1 + Config::consumers), 1)
    forward_kernel(const __grid_constant__ ForwardLaunch launch) {
    using Shared = ForwardShared<Config>;
    extern __shared__ __align__(1024) unsigned char memory[];
    const std::uint32_t shared = shared_address(memory);
    auto* units = reinterpret_cast<Unit*>(memory + Shared::units);
    const int group = uniform(static_cast<int>(threadIdx.x) / 128);

    if (threadIdx.x == 0) {
        prefetch_map(launch.q);
        prefetch_map(launch.k);
        prefetch_map(launch.v);
        constexpr int warps = 4 * Config::consumers;
        for (int i = 0; i < Config::stages; ++i) {
            Barrier{shared + Shared::k_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::v_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::k_empty + 8 * i}.initialise(pairs ? 2 * warps : warps);
            Barrier{shared + Shared::v_empty + 8 * i}.initialise(pairs ? 2 * warps : warps);
        }
        for (int i = 0; i < Shared::unit_slots; ++i) {
            Barrier{shared + Shared::unit_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::unit_empty + 8 * i}.initialise(warps);
        }
        for (int i = 0; i < Config::q_stages; ++i) {
            Barrier{shared + Shared::q_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::q_empty + 8 * i}.initialise(warps);
        }
        Barrier{shared + Shared::next_full}.initialise(1);
        Barrier{shared + Shared::next_empty}.initialise(1);
        fence_barrier_initialisation();
    }
    pairs ? sync_cluster() : __syncthreads();  // the other block's barriers, too

    if (group == 0) {
        shrink_registers<Config::producer_registers>();
        if (threadIdx.x / 32 == 0 && elected())
            ForwardProducer<Config, pairs>{launch, shared, units, {}, {}, {}, &launch.k, &launch.v}.run();
    } else {
        grow_registers<Config::consumer_registers>();
        const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
        ForwardConsumer<T, Config, rewrite, pairs> consumer{
            {launch, lane, 64 * (group - 1) + thread / 32 * 16 + lane / 4}, shared, units, group - 1, 2 * (lane % 4)};
        consumer.run();
    }
    if constexpr (pairs) sync_cluster();  // the other block has no more to tell this one
}

/// Multiprocessors of the current device.
inline int multiprocessors() {
    int device = 0, count = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

template <class T, class Config>
void launch_forward_with(const ForwardLaunch& arguments, cudaStream_t stream) {
    const int clusters = std::min(multiprocessors() / arguments.blocks, arguments.units);
    if (clusters == 0) return;
    const auto kernel = [&] {
        if constexpr (Config::pairs)
            if (arguments.blocks == 2) return forward_kernel<T, Config, false, true>;
        return arguments.params.rule.rewrite ? forward_kernel<T, Config, true, false>
                                             : forward_kernel<T, Config, false, false>;
    };
    launch_in_clusters(kernel(), "forward kernel for sm_90a", clusters, arguments.blocks, 128 * (1 + Config::consumers),
                       ForwardShared<Config>::bytes, arguments, stream);
}

template <DimClass dims>
void launch_forward(const ForwardLaunch& arguments, DType dtype, cudaStream_t stream) {
    dtype == DType::bf16 ? launch_forward_with<__nv_bfloat16, ForwardConfig<dims>>(arguments, stream)
                         : launch_forward_with<__half, ForwardConfig<dims>>(arguments, stream);
}

}  // namespace ringlab::gpu::hopper
