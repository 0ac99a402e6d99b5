#include "gpu/cuda_check.hpp"

#include "layouts/require.hpp"

namespace ringlab::gpu {

void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
    if (status == cudaSuccess) return;
    int device = -1;
    cudaGetDevice(&device);
    fail("CUDA error {} ({}) from {} at {}:{}, device {}", cudaGetErrorName(status), cudaGetErrorString(status), call,
         file, line, device);
}

}  // namespace ringlab::gpu
