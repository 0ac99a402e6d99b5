#pragma once

#include "layouts/schedule.hpp"

namespace ringlab::layouts {

/// Whether the visible pairs of one rank's rows with another's keys depend on nothing but which of the two ranks is the
/// greater. True of full masks over equal shards, and of causal ones where each run of a shard lies among those of
/// other ranks in the order of ranks, or in the reverse order: contiguous, zigzag, stripes. Linear in the runs.
bool order_decides_pairs(const Mask& mask, const Layout& layout);

/// The same of a schedule's mask and layout, where every rank sees something of every block and all tokens have a query
/// row: what goes by distances between ranks alone then does the same on all of them, see Schedule::ranks_are_alike().
bool ranks_see_alike(const Schedule& schedule);

}  // namespace ringlab::layouts
