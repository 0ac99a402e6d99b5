#pragma once

#include <cstdint>

// Messages of launches that merge: see MergingArgs.

namespace ringlab::gpu {

/// Four bytes of data, and the number of the launch that stored them, as the low and the high half. It is stored and
/// loaded as one, so whoever finds the number has the data. Pairs of a tensor lie densely, (batch, tokens, heads, dim),
/// from a multiple of 16 bytes on.
using Pair = std::uint64_t;

/// Most query tokens of a rank for launches that send each other pairs, which take twice the memory of the data.
constexpr std::int64_t most_merging_tokens = 256;

/// A partial result, normalised: values of o and lse in fp32.
struct ResultPairs {
    Pair *o = nullptr, *lse = nullptr;
};

}  // namespace ringlab::gpu
