#include "gpu/device/cuda_check.hpp"

#include "layouts/basics/require.hpp"

namespace ringlab::gpu {

void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
    if (status == cudaSuccess) return;
    int device = -1;
    cudaGetDevice(&device);
    cudaGetLastError();  // clears it, so that the check after a later launch does not report it again
    const auto text = fmt::format("CUDA error {} ({}) from {} at {}:{}, device {}", cudaGetErrorName(status),
                                  cudaGetErrorString(status), call, file, line, device);
    if (status == cudaErrorMemoryAllocation) throw NoMemory(text);
    throw Error(text);
}

}  // namespace ringlab::gpu
