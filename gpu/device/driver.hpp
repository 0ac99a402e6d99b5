#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace ringlab::gpu {

/// A function of the CUDA driver, as of CUDA 12.0, asked for at run time: nothing links the driver's library, which
/// machines without a GPU lack. Throws Error if the driver has none of the name.
void* driver_function(const char* name);

/// Writes `value` to device memory once all that `stream` was given before is done and visible to the device.
void write_value(cudaStream_t stream, std::uint32_t* address, std::uint32_t value);

/// Holds `stream` back until device memory has `value` or more, as a number that counts round.
void wait_for_value(cudaStream_t stream, const std::uint32_t* address, std::uint32_t value);

}  // namespace ringlab::gpu
