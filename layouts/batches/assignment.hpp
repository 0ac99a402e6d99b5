#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// Several packings at once: which ring of which size takes which documents of a global batch.

namespace ringlab::layouts {

/// A document of a global batch.
struct BatchDocument {
    std::int64_t tokens = 0;
    double seconds = 0;  ///< of both passes, if one rank owns all of it
};

/// Rings side by side, and the documents of each. A document lies on one ring, because its rows see each other.
///
/// Example: rings {4, 2, 2} over 8 ranks. Ring 0 has ranks 0 to 3, ring 1 ranks 4 and 5, ring 2 ranks 6 and 7.
struct Assignment {
    std::vector<int> rings;                           ///< number of ranks of each, behind those of the rings before it
    std::vector<std::vector<std::size_t>> documents;  ///< by ring: numbers of its documents, ascending

    friend bool operator==(const Assignment&, const Assignment&) = default;
};

/// The rings, and the most tokens that one of their ranks may have.
struct RingSet {
    std::vector<int> ranks;  ///< of each ring
    std::int64_t most_tokens = 0;
    /// By ring: its time divided by the sum of its documents' seconds per rank, as far as that is known; empty: 1. It
    /// is above 1 because documents are cut, and because ranks of a ring wait for each other.
    std::vector<double> slowdowns = {};
};

/// Assigns documents to rings so that the slowest ring takes as little time as possible, where a ring takes its
/// slowdown times the sum of its documents' seconds, divided by its ranks.
///
/// 1. Longest processing time first: documents go, the one with the most seconds first, to the ring that is done first
///    with it and has room for its tokens. A document that finds no room goes to the ring with most room.
/// 2. Rings with too many tokens exchange documents with other rings until all tokens have room.
/// 3. The slowest ring exchanges documents with other rings as long as it gets faster.
///
/// An exchange takes up to two documents (three in step 2) from each of two rings. The same arguments always give the
/// same assignment. Returns nothing if step 2 finds no way to make room. Throws Error if a document is empty, or there
/// is no ring.
std::optional<Assignment> assign_documents(std::span<const BatchDocument> documents, const RingSet& rings);

}  // namespace ringlab::layouts
