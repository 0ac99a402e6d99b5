#pragma once

#include "layouts/timeline/timeline.hpp"
#include "reference/ranks/transport.hpp"

namespace ringlab::reference {

/// A rank's memory and arithmetic, which execute() calls for each operation.
class RankWork {
public:
    virtual ~RankWork() = default;

    /// Executes an operation of the compute lane.
    virtual void compute(const layouts::Instruction& instruction) = 0;

    /// The bytes that a send reads, and those that a receive or fetch writes; valid until transfer_ended().
    virtual std::span<const std::byte> outgoing(const layouts::Instruction& instruction) = 0;
    virtual std::span<std::byte> incoming(const layouts::Instruction& instruction) = 0;

    /// Called once when a transfer has ended.
    virtual void transfer_ended(const layouts::Instruction& instruction) = 0;

    /// Offset in bytes, within the memory that the owner exposes, of what a fetch reads.
    virtual std::size_t exposed_offset(const layouts::Instruction& instruction) const = 0;
};

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
                                   RankWork& work, Transport& transport, Clock::time_point start,
                                   Clock::duration timeout);

}  // namespace ringlab::reference
