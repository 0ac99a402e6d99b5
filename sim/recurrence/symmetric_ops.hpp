#pragma once

#include "layouts/schedules/schedule.hpp"

#include <vector>

namespace ringlab::sim {

/// Operations of a schedule that is the same on every rank but for its number: operation i of rank r is that of rank 0
/// with peer and blocks shifted by r.
struct SymmetricOps {
    std::vector<layouts::Op> of_rank_0;
    bool same_pair_counts = true;  ///< in all ranks that were looked at, attends have as many visible pairs as rank 0's
};

/// Reads the operations of rank 0 and compares them with those of a sample of ranks. Throws Error if one differs.
SymmetricOps read_symmetric(const layouts::Schedule& schedule);

/// Rank or block number `rank` shifted by `by`, modulo the number of ranks.
inline int shifted(const layouts::Schedule& schedule, int rank, int by) {
    return static_cast<int>((std::int64_t{rank} + by) % schedule.ranks());
}
inline layouts::Part shifted(const layouts::Schedule& schedule, layouts::Part part, int by) {
    part.block = shifted(schedule, part.block, by);
    return part;
}

}  // namespace ringlab::sim
