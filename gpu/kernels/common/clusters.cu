#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/common/clusters.hpp"

#include <map>
#include <utility>

namespace ringlab::gpu {
namespace {

__global__ void occupy() {}

int ask(int blocks) {
    constexpr int shared_bytes = 200 << 10;  // more than half of an SM's
    if (cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = {static_cast<unsigned>(blocks), 1, 1};
    config.blockDim = {128, 1, 1};
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, occupy, &config) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return clusters;
}

}  // namespace

int sms_of_device() {
    int device = 0, count = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

int clusters_at_a_time(int blocks) {
    int device = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    // The driver takes microseconds to answer, which would show in short launches.
    thread_local std::map<std::pair<int, int>, int> known;
    const auto [found, is_new] = known.try_emplace({device, blocks});
    if (is_new) found->second = ask(blocks);
    return found->second;
}

}  // namespace ringlab::gpu
