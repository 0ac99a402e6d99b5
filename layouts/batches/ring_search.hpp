#pragma once

#include "layouts/batches/assignment.hpp"

#include <functional>
#include <span>
#include <vector>

namespace ringlab::layouts {

/// Seconds of both passes on a ring of `ranks` ranks with these documents, whose numbers are ascending.
using RingPrice = std::function<double(int ranks, std::span<const std::size_t> documents)>;

/// An assignment, and the time that each ring takes.
struct PricedAssignment {
    Assignment assignment;
    std::vector<double> seconds;  ///< of both passes, by ring

    /// Time of a step: it waits for the slowest ring.
    double slowest() const;
    /// Mean over all ranks, each with the time of its ring.
    double mean() const;
};

/// The assignment with the price of each of its rings.
PricedAssignment priced(Assignment assignment, const RingPrice& price);

/// Documents exchanged among given rings. Assigns them, prices each ring, takes the ratio of its price to its work per
/// rank as the ring's slowdown, and assigns again, a few times. Returns the best of these, or nothing if tokens have no
/// room.
std::optional<PricedAssignment> exchange_documents(std::span<const BatchDocument> documents, const RingSet& rings,
                                                   const RingPrice& price);

/// Sizes of rings for groups that are made once: powers of two that divide a host, whole hosts in powers of two, and
/// all ranks. Ascending. Rings of such sizes, the largest first, each lie within a host or fill hosts.
std::vector<int> nested_ring_sizes(int ranks, int ranks_per_host);

/// What choose_rings() may choose.
struct RingChoice {
    int ranks = 1;           ///< of all rings together
    std::vector<int> sizes;  ///< that a ring may have, ascending
    std::int64_t most_tokens = 0;
};

/// The best rings of sizes that may differ. Begins with rings of one size, for each size that divides the ranks. From
/// the best of them it merges two rings into one, or splits one in two, whichever lowers the time of the slowest ring
/// most (or keeps it and lowers the mean), until nothing does. All rings are priced by exchange_documents(). Returns
/// nothing if tokens have no room on any rings of one size.
std::optional<PricedAssignment> choose_rings(std::span<const BatchDocument> documents, const RingChoice& choice,
                                             const RingPrice& price);

}  // namespace ringlab::layouts
