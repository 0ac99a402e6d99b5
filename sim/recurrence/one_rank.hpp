#pragma once

#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"

#include <cstdint>

namespace ringlab::sim {

/// One rank's pass, as if every other rank did the same as this one at the same time.
struct OneRank {
    double seconds = 0;  ///< end of its last operation
    double compute = 0;  ///< of which its compute lane is at work
    double flop = 0;     ///< of the pairs that it attends to
    std::int64_t operations = 0;
};

/// Plays one rank alone, by the recurrence of max_plus(): a message begins when this rank's own other half on its
/// channel is ready too, in place of its peer's. Exact where all ranks do the same and share nothing; with a fixed
/// number of sampled ranks it takes time for P operations, where all of them take P^2. What the rank's messages take
/// of its link in all is a bound; that flows of others share it is not seen.
OneRank play_one_rank(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options, int rank);

}  // namespace ringlab::sim
