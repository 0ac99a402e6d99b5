#pragma once

#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/common/params.hpp"

namespace ringlab::gpu {

/// Launches `kernel` with `shared_bytes` of dynamic shared memory. Throws Error if the device has too little.
template <class Params>
void launch(void (*kernel)(Params), const char* name, dim3 grid, int threads, int shared_bytes, const Params& params,
            cudaStream_t stream) {
    if (grid.x == 0 || grid.y == 0) return;
    allow_shared_memory(reinterpret_cast<const void*>(kernel), name, shared_bytes);
    kernel<<<grid, static_cast<unsigned>(threads), static_cast<std::size_t>(shared_bytes), stream>>>(params);
    RINGLAB_CUDA_LAUNCHED(name);
}

/// The same with blocks in clusters, in one dimension.
template <class Params>
void launch_in_clusters(void (*kernel)(Params), const char* name, int clusters, int blocks, int threads,
                        int shared_bytes, const Params& params, cudaStream_t stream) {
    allow_shared_memory(reinterpret_cast<const void*>(kernel), name, shared_bytes);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks) * static_cast<unsigned>(clusters));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    RINGLAB_CUDA(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace ringlab::gpu
