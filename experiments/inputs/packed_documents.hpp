#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Lengths of the documents of one packing: lengths drawn at random, one document after another. The last one is cut
/// where the packing has its `tokens`.
std::vector<std::int64_t> drawn_packing(const std::vector<std::int64_t>& lengths, std::int64_t tokens,
                                        std::uint64_t seed, std::uint32_t number);

/// Packings that data-parallel rings take in one step of the optimizer, by the lengths of their documents. All packings
/// have equally many tokens.
struct Batch {
    std::vector<std::vector<std::int64_t>> packings;

    std::int64_t tokens_per_packing() const;
    /// Lengths of all documents, one packing after another. A document's index in this list is its number.
    std::vector<std::int64_t> lengths() const;
};

/// Reads a batch from a text file: a line for each packing, with the lengths of its documents such as "512,300,128x4"
/// or "512 300". Throws Error that names the line.
Batch read_batch(const std::string& path);

/// Batch `number` of many: the packings `number` * `packings` and following ones of drawn_packing().
Batch drawn_batch(const std::vector<std::int64_t>& lengths, std::int64_t tokens, int packings, std::uint64_t seed,
                  std::uint32_t number);

/// "causal+documents:512,20,7660": the mask of a packing with these documents.
std::string packed_mask(const std::string& mask, const std::vector<std::int64_t>& lengths);

}  // namespace ringlab::experiments
