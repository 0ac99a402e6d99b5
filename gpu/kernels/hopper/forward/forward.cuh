#pragma once

#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/hopper/forward/forward_config.hpp"
#include "gpu/kernels/hopper/forward/forward_consumer.cuh"
#include "gpu/kernels/hopper/forward/forward_producer.cuh"

#include <algorithm>

// Forward pass of one attend on sm_90a. It computes what gpu/kernels/portable/forward.cuh computes, in the manner of
// FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608). One thread of the producer warpgroup loads tiles by bulk
// copies. Each consumer warpgroup computes products and softmax of 64 query rows. The softmax of one warpgroup runs
// while the other multiplies. Within a warpgroup, the softmax of a tile runs during the product of P and V of the tile
// before.
//
// Work tiles (class Unit): a work tile is a query tile of one head. A thread block that is free takes the next work
// tile from a counter in global memory. The order is: sections of heads whose K and V fit into L2, and in a section the
// longest work tile first. Partial key tiles come first in a work tile, so the loop over full ones does not test
// elements.
//
// Fused launches: the launch goes over several K/V blocks. A work tile then has a part for each K/V block. The producer
// announces the parts to the consumers one by one, and O, m and l stay in registers from part to part. The producer
// waits for a K/V block before it first loads from it.
//
// Pairs: two thread blocks may form a cluster. Both process the same query tile, for two query heads that read the same
// kv head, so they need the same K and V at the same time. Each loads half of a tile for both, and the tile is read
// from L2 once. The first thread block of a pair takes the next work tile from the counter and sends its number to the
// second.
//
// Carry: a work tile starts without the state of earlier launches. It merges this state (the carry) at its end, when it
// stores its results. The carry's rows are prefetched into L2 before that.

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
    pairs ? sync_cluster() : __syncthreads();  // pairs: the barriers of both thread blocks are initialised

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
    if constexpr (pairs) sync_cluster();  // pairs: the other thread block sends nothing more to this one
}

/// Number of SMs of the current device.
inline int multiprocessors() {
    int device = 0, count = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

template <class T, class Config>
void launch_forward_with(const ForwardLaunch& arguments, cudaStream_t stream) {
    const int clusters = std::min(multiprocessors() / arguments.blocks, arguments.work_tiles);
    if (clusters == 0) return;
    const auto kernel = [&] {
        if constexpr (Config::pairs)
            if (arguments.blocks == 2) return forward_kernel<T, Config, false, true>;
        return arguments.params.rule.rewrite ? forward_kernel<T, Config, true, false>
                                             : forward_kernel<T, Config, false, false>;
    };
    constexpr const char* name = "forward kernel for sm_90a";
    // The mask decides whether blocks are paired. So both kernels are loaded with the first one: a ring rehearses the
    // kernels of a shape once, for all masks (ReadyRing::rehearse).
    if constexpr (Config::pairs)
        for (const auto each : {forward_kernel<T, Config, false, false>, forward_kernel<T, Config, false, true>})
            allow_shared_memory(reinterpret_cast<const void*>(each), name, ForwardShared<Config>::bytes);
    launch_in_clusters(kernel(), name, clusters, arguments.blocks, 128 * (1 + Config::consumers),
                       ForwardShared<Config>::bytes, arguments, stream);
}

template <DimClass dims>
void launch_forward(const ForwardLaunch& arguments, DType dtype, cudaStream_t stream) {
    dtype == DType::bf16 ? launch_forward_with<__nv_bfloat16, ForwardConfig<dims>>(arguments, stream)
                         : launch_forward_with<__half, ForwardConfig<dims>>(arguments, stream);
}

}  // namespace ringlab::gpu::hopper
