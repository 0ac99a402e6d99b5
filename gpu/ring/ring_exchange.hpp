#pragma once

#include "gpu/execution/ring_setup.hpp"
#include "gpu/transports/transport.hpp"

#include <memory>

namespace ringlab::gpu {

/// Connects one rank of a ring of processes to the others: exchange memory, and a transport. All plans of the ring
/// use it, one pass after the other. If a plan wants more than there is, all of it is made anew, as rarely as possible.
///
/// The device must be current. All functions that are not const are called by all ranks together, with equal arguments.
class RingExchange {
public:
    struct Options {
        TransportKind transport = TransportKind::copy;
        int device = 0;
        Clock::duration timeout = std::chrono::minutes(1);
    };
    /// The needs of one plan, or of several: the maximum or union of theirs.
    struct Needs {
        std::size_t bytes = 0;  ///< of exchange memory, of the rank that has most; flags included
        std::size_t flags = 0;  ///< MapOptions::arrival_flags
        Routes routes;
    };

    RingExchange(Team& team, const Options& options)
        : team_(team),
          options_(options),
          rank_(team.first_local()),
          hosts_(reach_of_copies(options.transport, team, options.timeout)) {}

    const RankHosts& hosts() const { return hosts_; }

    /// MapOptions::arrival_flags of a plan with so many messages. Flags for meetings follow those of messages.
    std::size_t flags_for(std::size_t arrival_flags) const;

    bool has(const Needs& needs) const;

    /// Makes everything anew, for all plans so far and for `needs`. No pass may be under way. If a rank has too little
    /// memory, throws Error on all of them, and there is again what was there before.
    void grow(const Needs& needs);

    /// Lets go of peers' memory, without the others: no pass of this rank is under way any more, and none follows.
    /// Returns whether they have let go of this rank's memory, or have ended; then it is freed.
    bool let_go();

    /// Changes when exchange memory is another one.
    int generation() const { return generation_; }

    Fabric& fabric() const { return *fabric_; }
    Transport& transport() const { return *transport_; }
    const std::shared_ptr<void>& memory() const { return memory_; }
    std::size_t bytes() const { return held_.bytes; }
    std::size_t flags() const { return held_.flags; }

    /// Makes the stream wait at a barrier of all ranks' streams.
    void meet(cudaStream_t stream);

    /// How many passes have used the memory: their numbers, by which arrival flags tell them apart.
    std::uint32_t passes = 0;

private:
    /// All ranks together.
    void disconnect();
    void free_memory();
    void connect(const Needs& needs);

    Team& team_;
    const Options options_;
    const int rank_;
    const RankHosts hosts_;
    Needs held_;
    int generation_ = 0;
    std::unique_ptr<Fabric> fabric_;
    std::shared_ptr<void> memory_;
    std::unique_ptr<Transport> transport_;
    std::uint32_t meetings_ = 0;
};

}  // namespace ringlab::gpu
