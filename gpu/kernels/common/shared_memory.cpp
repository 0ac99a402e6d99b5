#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/common/params.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

namespace ringlab::gpu {

int most_shared_memory() {
    int device = 0, most = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return most;
}

void allow_shared_memory(const void* kernel, const char* name, int bytes) {
    using Allowed = std::tuple<int, const void*, int>;  // device, kernel, bytes
    static thread_local std::vector<Allowed> allowed;   // a few: looking through them is quicker than hashing
    int device = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    if (std::find(allowed.begin(), allowed.end(), Allowed{device, kernel, bytes}) != allowed.end()) return;
    const int most = most_shared_memory();
    require(bytes <= most, "the {} needs {} bytes of shared memory per block, device {} has {}; use smaller head dims",
            name, bytes, device, most);
    RINGLAB_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    allowed.emplace_back(device, kernel, bytes);
}

}  // namespace ringlab::gpu
