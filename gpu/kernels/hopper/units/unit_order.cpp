#include "gpu/kernels/hopper/units/unit_order.hpp"

#include "gpu/device/cuda_check.hpp"

namespace ringlab::gpu::hopper {

int multiprocessors_of_device() {
    int device = 0, count = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

}  // namespace ringlab::gpu::hopper
