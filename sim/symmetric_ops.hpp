#pragma once

#include "layouts/schedule.hpp"

#include <vector>

namespace ringlab::sim {

/// Operations of a schedule in which every rank does the same but for its number: rank r's i-th operation is rank 0's
/// with its peer and blocks r further on.
struct SymmetricOps {
    std::vector<layouts::Op> of_rank_0;
    bool uniform_cells = true;  ///< attends of all ranks looked at have as many cells as rank 0's
};

/// Reads rank 0's and compares them with those of a sample of ranks. Throws Error if one of them differs.
SymmetricOps read_symmetric(const layouts::Schedule& schedule);

/// The rank, or block, `by` further on.
inline int shifted(const layouts::Schedule& schedule, int rank, int by) {
    return static_cast<int>((std::int64_t{rank} + by) % schedule.ranks());
}
inline layouts::Part shifted(const layouts::Schedule& schedule, layouts::Part part, int by) {
    part.block = shifted(schedule, part.block, by);
    return part;
}

}  // namespace ringlab::sim
