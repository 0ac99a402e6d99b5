#pragma once

#include "layouts/timeline.hpp"
#include "reference/cpu/transport.hpp"

namespace ringlab::reference {

/// A rank's memory and arithmetic: what the executor calls when it is an operation's turn.
class RankWork {
public:
    virtual ~RankWork() = default;

    /// Does what is on the compute lane.
    virtual void compute(const layouts::Instruction& instruction) = 0;

    /// The bytes that a send reads, or a receive or fetch writes; valid until transfer_ended().
    virtual std::span<const std::byte> outgoing(const layouts::Instruction& instruction) = 0;
    virtual std::span<std::byte> incoming(const layouts::Instruction& instruction) = 0;

    /// Called once when a transfer has ended.
    virtual void transfer_ended(const layouts::Instruction& instruction) = 0;

    /// Where in the memory that the owner exposes a fetch begins to read, in bytes.
    virtual std::size_t exposed_offset(const layouts::Instruction& instruction) const = 0;
};

/// Which rank of which ring is executing.
struct RankIdentity {
    const layouts::RingGroup& group;
    int replica = 0;
    int rank = 0;  ///< in the ring
};

/// CPU time of the calling thread: what counts on a machine with fewer processors than ranks.
layouts::Picoseconds thread_cpu_time();

/// Runs the operations of one rank by their lanes and dependencies, on the calling thread, and returns a span for each:
/// posted and end on the common clock since `start`, busy CPU time for compute operations. Transfers are started and
/// finished between compute operations, and while none can begin.
///
/// Throws Error that names rank, operation and peer if nothing has moved for `timeout`.
std::vector<layouts::Span> execute(const layouts::RankProgram& program, int lanes, const RankIdentity& identity,
                                   RankWork& work, Transport& transport, Clock::time_point start,
                                   Clock::duration timeout);

}  // namespace ringlab::reference
