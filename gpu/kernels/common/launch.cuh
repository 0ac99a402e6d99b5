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

// Launches that begin while the launch before them in the stream ends (programmatic dependent launch, sm_90 and later).
// A kernel that is launched in this way calls await_launch_before() before it touches memory that other launches write.

namespace device {

/// Waits until the launch before this one in the stream has ended and its writes are visible. Does nothing in a kernel
/// that was launched in the ordinary way.
__device__ inline void await_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next launch begin once all thread blocks have called this or have ended. No block may wait for another
/// stream after that, because the blocks of the next launch may then keep the SMs that the other stream needs.
__device__ inline void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace device

/// As launch_in_clusters(), but the launch may begin before the launch before it has ended, where devices can do that.
template <class Params>
void launch_chained(void (*kernel)(Params), const char* name, int clusters, int blocks, int threads, int shared_bytes,
                    const Params& params, cudaStream_t stream) {
    int device = 0, major = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    allow_shared_memory(reinterpret_cast<const void*>(kernel), name, shared_bytes);
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks) * static_cast<unsigned>(clusters));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    if (major < 9) {  // neither clusters nor chained launches
        config.attrs = nullptr;
        config.numAttrs = 0;
    }
    RINGLAB_CUDA(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace ringlab::gpu
