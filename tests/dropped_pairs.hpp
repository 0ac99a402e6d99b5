#pragma once

#include "layouts/problem/dropout.hpp"
#include "reference/tensors/tensors.hpp"

#include <cstdint>

namespace ringlab::tests {

/// The inputs with v and do that tell which pairs were kept: v of token t, and do of row t, are 1 in dim t alone, so
/// that o of row i has d_ij p_ij in dim j, and dv of key j that of all rows. `value_dim` must be `tokens`.
inline reference::Inputs telling(reference::Inputs inputs) {
    for (auto* tensor : {&inputs.v, &inputs.dout})
        for (std::size_t b = 0; b < tensor->shape(0); ++b)
            for (std::size_t t = 0; t < tensor->shape(1); ++t)
                for (std::size_t h = 0; h < tensor->shape(2); ++h)
                    for (std::size_t d = 0; d < tensor->shape(3); ++d) (*tensor)(b, t, h, d) = d == t ? 1 : 0;
    return inputs;
}

/// Of a causal problem with telling inputs, a kv head for each query head: pairs of both passes that were kept though
/// they should not have been, or the other way round.
inline int wrong_pairs(const layouts::Problem& problem, const reference::Outputs& outputs) {
    const auto draw = layouts::dropout_draw(problem.dropout);
    const auto tokens = static_cast<std::uint32_t>(problem.tokens);
    const auto heads = static_cast<std::uint32_t>(problem.query_heads);
    int wrong = 0;
    for (std::uint32_t b = 0; b < static_cast<std::uint32_t>(problem.batch); ++b)
        for (std::uint32_t h = 0; h < heads; ++h)
            for (std::uint32_t i = 0; i < tokens; ++i)
                for (std::uint32_t j = 0; j < tokens; ++j) {
                    const bool kept = j <= i && draw.keeps(b, h, i, j);
                    wrong += (outputs.o(b, i, h, j) != 0) != kept;
                    wrong += (outputs.dv(b, j, h, i) != 0) != kept;
                }
    return wrong;
}

}  // namespace ringlab::tests
