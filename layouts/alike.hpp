#pragma once

#include "layouts/layout.hpp"
#include "layouts/mask.hpp"

namespace ringlab::layouts {

/// Whether the visible pairs of one rank's rows with another's keys depend on nothing but which of the two ranks is the
/// greater. True of full masks over equal shards, and of causal ones where each run of a shard lies among those of
/// other ranks in the order of ranks, or in the reverse order: contiguous, zigzag, stripes. Linear in the runs.
bool order_decides_pairs(const Mask& mask, const Layout& layout);

}  // namespace ringlab::layouts
