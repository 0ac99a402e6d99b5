#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace ringlab::gpu {

/// A function of the CUDA driver, version 12.0, looked up at run time. So nothing links the driver's library, which
/// machines without a GPU do not have. Throws Error if the driver has no function of that name.
void* driver_function(const char* name);

/// Enqueues a write of `value` to device memory, after all earlier work of `stream` is done and visible to the device.
void write_value(cudaStream_t stream, std::uint32_t* address, std::uint32_t value);

/// Enqueues a wait on `stream` until device memory has `value` or more, compared as a number that wraps around.
void wait_for_value(cudaStream_t stream, const std::uint32_t* address, std::uint32_t value);

/// In one call: enqueues a write of `value` to each of `written`, then waits until all of `awaited` have it or more.
void exchange_value(cudaStream_t stream, std::span<std::uint32_t* const> written,
                    std::span<const std::uint32_t* const> awaited, std::uint32_t value);

}  // namespace ringlab::gpu
