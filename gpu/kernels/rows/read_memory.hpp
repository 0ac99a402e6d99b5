#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace ringlab::gpu {

/// Reads `bytes` bytes (a multiple of 16) of zeros in device memory as fast as the device can, and does nothing with
/// them. `sink` is an int in device memory. In stream order.
void read_memory(const void* memory, std::size_t bytes, void* sink, cudaStream_t stream);

}  // namespace ringlab::gpu
