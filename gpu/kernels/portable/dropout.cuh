#pragma once

#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/portable/backward.cuh"
#include "gpu/kernels/portable/forward.cuh"
#include "gpu/kernels/portable/query_gradient.cuh"

// The portable kernels with dropout (layouts/problem/dropout.hpp), in translation units of their own.
//
// A thread draws which pairs of its tile are kept in a loop that is not unrolled, and stores one bit per pair. If the
// loop were unrolled among the accumulators, the generator's words would take their registers. The draw depends on
// positions alone. One call of the generator serves two neighbours if their positions lie in one patch of 2 x 2 pairs,
// as they do in contiguous shards.

namespace ringlab::gpu {

/// Bit 0 of the first pair (query.x, key.x), bit 1 of (query.y, key.y).
__device__ inline unsigned kept_of(const DropoutParams& dropout, int batch, int head, int2 query, int2 key) {
    const auto word_of = [](const auto& words, int q, int k) {
        return q % 2 ? (k % 2 ? words[3] : words[2]) : (k % 2 ? words[1] : words[0]);
    };
    const auto h = static_cast<std::uint32_t>(dropout.first_head + head), b = static_cast<std::uint32_t>(batch);
    const auto words_at = [&](int q, int k) {
        return dropout.draw.words(b, h, static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(k));
    };
    auto words = words_at(query.x, key.x);
    const unsigned first = dropout.draw.keeps(word_of(words, query.x, key.x));
    if (query.y / 2 != query.x / 2 || key.y / 2 != key.x / 2) words = words_at(query.y, key.y);
    return first | static_cast<unsigned>(dropout.draw.keeps(word_of(words, query.y, key.y))) << 1;
}

}  // namespace ringlab::gpu
