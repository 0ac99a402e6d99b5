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

/// Plays one rank alone, by the recurrence of max_plus(). The peer of a message is assumed to be as far as this rank: a
/// send begins when this rank's own receive on the same channel is ready too, and the other way round. This is exact if
/// all ranks do the same and share nothing. It takes time for P operations, where all ranks take P^2. The total time of
/// the rank's messages on its link is a lower bound. Sharing of links with other ranks is ignored.
OneRank play_one_rank(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options, int rank);

}  // namespace ringlab::sim
