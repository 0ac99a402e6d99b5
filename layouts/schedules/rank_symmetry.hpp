#pragma once

#include "layouts/schedules/schedule.hpp"

namespace ringlab::layouts {

/// Whether the number of visible pairs between the rows of one rank and the keys of another depends only on which of
/// the two ranks is the greater. True for full masks over equal shards. True for causal masks if, for every i, the i-th
/// runs of all ranks are ordered by rank, ascending or descending, as with contiguous, zigzag and striped. Linear in
/// the number of runs.
bool pairs_depend_on_rank_order(const Mask& mask, const Layout& layout);

/// Whether pairs_depend_on_rank_order() holds for the schedule's mask and layout, every rank sees something of every
/// block and all tokens have a query row. A schedule that depends only on distances between ranks then fulfils
/// Schedule::is_rank_symmetric().
bool has_rank_symmetric_pairs(const Schedule& schedule);

}  // namespace ringlab::layouts
