#pragma once

#include "reference/ranks/cpu_rank.hpp"

namespace ringlab::reference {

/// Identifies the rank that executes, and its ring.
struct RankIdentity {
    const layouts::RingGroup& group;
    int replica = 0;
    int rank = 0;          ///< in the ring
    bool is_slow = false;  ///< see CpuOptions::slow_rank
};

/// CPU time of the calling thread. Used because wall time means little on a machine with fewer cores than ranks.
layouts::Picoseconds thread_cpu_time();

/// Executes the operations of one rank on the calling thread, in an order that respects lanes and dependencies, and
/// returns a span for each: posted and end are times since `start`, busy is the CPU time of compute operations.
/// Transfers are started and completed between compute operations, and while no compute operation can begin.
///
/// Throws Error that names rank, operation and peer if there is no progress for `timeout`.
std::vector<layouts::Span> execute(const layouts::RankProgram& program, int lanes, const RankIdentity& identity,
                                   CpuRank& work, Transport& transport, Clock::time_point start,
                                   Clock::duration timeout);

}  // namespace ringlab::reference
