#pragma once

#include "gpu/baselines/timed_call.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// "matrix_product": of two square bf16 matrices of normal numbers by cuBLAS, on the current device. Throws Error if
/// there is no cuBLAS.
TimedCall matrix_product();
constexpr std::int64_t matrix_product_size = 8192;  ///< rows, and columns

/// Rate at which a kernel reads 1 GiB of the current device's memory.
double read_bytes_per_second();

/// Times messages between the first `devices` devices of this process, over copy engines and, if the program was built
/// with it, NCCL. Empty for fewer than two devices.
std::vector<LinkTimes> time_links(int devices, const std::vector<std::int64_t>& message_bytes, int repeats);

/// Times `calls` (one for each device), several in a row, both alone and while every device sends to its right
/// neighbour by `transport` ("copy" or "nccl"; the latter as the executor sends messages: by a kernel for each
/// direction, of as many thread blocks as NCCL takes of its own accord, or more). There is a pause before each row, so
/// that clocks are high. Returns the first device's "alone" (its calls without messages), "beside" (its calls with
/// them) and "message"; nothing if the program was built without the transport.
std::vector<CallTimes> time_busy_links(const std::vector<TimedCall>& calls, std::int64_t message_bytes,
                                       const std::string& transport);

/// A device's streams for each direction.
struct TwoStreams {
    cudaStream_t sends, receives;
};

/// Sends one message from each device to the next over NCCL, on the streams that are given; enqueues and returns.
using NcclRing = std::function<void(const std::vector<TwoStreams>&)>;

/// Null in a program built without NCCL.
NcclRing nccl_ring(const std::vector<const void*>& from, const std::vector<void*>& to, std::int64_t bytes);

/// The same with a kernel of at most `most_blocks` thread blocks for each direction, as the executor sends messages,
/// and memory of its own that is registered with NCCL.
NcclRing nccl_ring_apart(int devices, std::int64_t bytes, int most_blocks);

}  // namespace ringlab::gpu
