#pragma once

#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/hopper/forward/forward.hpp"
#include "gpu/kernels/hopper/forward/forward_consumer.cuh"
#include "gpu/kernels/hopper/forward/forward_producer.cuh"

#include <algorithm>

// Forward pass of one attend on sm_90a. It computes what gpu/kernels/portable/forward.cuh computes, in the manner of
// FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608). One thread of the producer warpgroup loads tiles by bulk
// copies. Each consumer warpgroup computes products and softmax of 64 query rows. The softmax of one warpgroup runs
// while the others multiply. A warpgroup issues the scores of a tile together with the product of P and V of the tile
// before.
//
// Work tiles (class Unit): a work tile is a query tile of one head. A thread block that is free takes the next work
// tile from a counter in global memory. The order is: sections of heads whose K and V fit into L2, and in a section the
// longest work tile first. Partial key tiles come first in a work tile, so that full ones meet maxima of some keys.
//
// Fused launches: the launch goes over several K/V blocks. A work tile then has a part for each K/V block. The producer
// announces the parts to the consumers one by one, and O, m and l stay in registers from part to part. The producer
// waits for a K/V block before it first loads from it.
//
// Softmax: a full tile is first computed with the maxima of earlier tiles (see softmax_by_old_maxima()), which saves
// the search for maxima and the rescaling of O. Only if a row's p grow past a limit, and in partial tiles and the first
// tile of a work tile, the maxima are brought up to date.
//
// Carry: a work tile starts without the state of earlier launches. It merges this state (the carry) at its end, when it
// stores its results. With two stages of Q, the producer has loaded most of the carry into shared memory by then, into
// the place of the work tile's Q. Otherwise it has prefetched the carry into L2.

namespace ringlab::gpu::hopper {

template <class T, class Config, bool rewrite, class Launch>
__global__ void __launch_bounds__(128 * (1 + Config::consumers), 1)
    forward_kernel(const __grid_constant__ Launch launch) {
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
            Barrier{shared + Shared::k_empty + 8 * i}.initialise(warps);
            Barrier{shared + Shared::v_empty + 8 * i}.initialise(warps);
        }
        for (int i = 0; i < Shared::unit_slots; ++i) {
            Barrier{shared + Shared::unit_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::unit_empty + 8 * i}.initialise(warps);
        }
        for (int i = 0; i < Config::q_stages; ++i) {
            Barrier{shared + Shared::q_full + 8 * i}.initialise(1);
            Barrier{shared + Shared::q_empty + 8 * i}.initialise(warps);
        }
        Barrier{shared + Shared::boxes_free}.initialise(warps);
        Barrier{shared + Shared::boxes_full}.initialise(1);
        fence_barrier_initialisation();
    }
    __syncthreads();

    if (group == 0) {
        shrink_registers<Config::producer_registers>();
        if (threadIdx.x / 32 == 0 && elected())
            ForwardProducer<Config, DropsOut<Launch>>{launch, shared, units, {}, {}, {}, &launch.k, &launch.v}.run();
    } else {
        grow_registers<Config::consumer_registers>();
        const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
        ForwardConsumer<T, Config, rewrite, Launch> consumer{
            {launch, lane, 64 * (group - 1) + thread / 32 * 16 + lane / 4}, shared, units, group - 1, 2 * (lane % 4)};
        consumer.run();
    }
}

template <class T, class Config, class Launch>
void launch_forward_with(const Launch& arguments, cudaStream_t stream) {
    const int blocks = std::min(sms_of_device(), arguments.work_tiles);
    launch(arguments.params.rule.rewrite ? forward_kernel<T, Config, true, Launch>
                                         : forward_kernel<T, Config, false, Launch>,
           "forward kernel for sm_90a", dim3(static_cast<unsigned>(blocks)), 128 * (1 + Config::consumers),
           ForwardShared<Config>::bytes, arguments, stream);
}

template <DimClass dims, class Launch>
void launch_forward(const Launch& arguments, DType dtype, cudaStream_t stream) {
    dtype == DType::bf16 ? launch_forward_with<__nv_bfloat16, ForwardConfig<dims>>(arguments, stream)
                         : launch_forward_with<__half, ForwardConfig<dims>>(arguments, stream);
}

}  // namespace ringlab::gpu::hopper
