#pragma once

#include <cuda_runtime_api.h>

namespace ringlab::gpu {

/// Throws Error, or NoMemory, with the call, its place and CUDA's own text unless `status` is success.
void check_cuda(cudaError_t status, const char* call, const char* file, int line);

}  // namespace ringlab::gpu

/// Runs a CUDA runtime call and throws Error if it fails.
#define RINGLAB_CUDA(call) ::ringlab::gpu::check_cuda((call), #call, __FILE__, __LINE__)

/// After a kernel launch: throws Error if it could not be launched. Errors inside the kernel show at a later call.
#define RINGLAB_CUDA_LAUNCHED(kernel) ::ringlab::gpu::check_cuda(cudaGetLastError(), kernel, __FILE__, __LINE__)
