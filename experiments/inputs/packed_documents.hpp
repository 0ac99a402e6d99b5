#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Lengths of the documents of one packing: lengths drawn at random, one document after another. The last one is cut
/// where the packing has its `tokens`.
std::vector<std::int64_t> drawn_packing(const std::vector<std::int64_t>& lengths, std::int64_t tokens,
                                        std::uint64_t seed, std::uint32_t number);

/// "causal+documents:512,20,7660": the mask of a packing with these documents.
std::string packed_mask(const std::string& mask, const std::vector<std::int64_t>& lengths);

}  // namespace ringlab::experiments
