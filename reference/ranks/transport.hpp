#pragma once

#include "layouts/basics/ring_group.hpp"
#include "layouts/schedules/schedule.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace ringlab::reference {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

/// A send, receive or fetch that is under way. The bytes it was started with must outlive it.
class Transfer {
public:
    virtual ~Transfer() = default;

    /// The time at which it ended, on this process's clock; nullopt while it is under way. Throws Error if it failed.
    virtual std::optional<Clock::time_point> ended() = 0;
};

/// Communication of one rank with the others. Ranks are global ranks here; a caller that knows a peer by its ring rank
/// translates it with layouts::RingGroup first. Only the rank's own thread may use it.
class Transport {
public:
    virtual ~Transport() = default;

    virtual int rank() const = 0;

    /// Messages between two ranks on one channel match in order; a receive of another size than its message
    /// throws Error, here or from ended().
    virtual std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) = 0;
    virtual std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) = 0;

    /// Makes `bytes` readable for every rank until withdraw(). All ranks must call both functions, which wait for all
    /// ranks.
    virtual void expose(std::span<const std::byte> bytes) = 0;
    virtual void withdraw() = 0;

    /// Reads the bytes that `peer` exposes, from `offset` on; the peer takes no part in it.
    virtual std::unique_ptr<Transfer> fetch(std::span<std::byte> into, int peer, std::size_t offset) = 0;

    /// Sleeps until a transfer of this rank may have ended, for at most `limit`. It may return early.
    virtual void wait(Clock::duration limit) = 0;

    /// Tells the transport that this rank begins or ends a compute operation.
    virtual void set_computing(bool computing) = 0;

    /// Whether another rank is known to be computing. Then a long wait does not mean that a rank is stuck.
    virtual bool others_compute() const = 0;

    /// All ranks must call this. Returns the same instant on all ranks, expressed on this process's clock. No rank
    /// returns before that instant.
    virtual Clock::time_point start_together() = 0;

    /// Largest error, in seconds, of the clock differences that start_together() assumes.
    virtual double clock_uncertainty() const = 0;
};

/// A set of group().world() ranks that can run and communicate, in one process or several.
class World {
public:
    explicit World(layouts::RingGroup group) : group_(group) {}
    virtual ~World() = default;
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    const layouts::RingGroup& group() const { return group_; }

    /// Whether this process receives the results.
    virtual bool is_root() const = 0;

    /// Returns `root_says` of the root process on every process. All processes must call it. Waits for the root as long
    /// as it lives.
    virtual bool agree(bool root_says) = 0;

    /// Calls `body` once for every rank, all at the same time, and returns their results by global rank on the root
    /// process, nothing on others. Waits of all ranks for each other end after about `timeout` if a missing rank could
    /// not be noticed otherwise. If a body throws, all ranks stop; the first error is thrown here or, if other
    /// processes would wait forever, ends the program with its message and a non-zero exit status.
    ///
    /// Buffers given to a transport must outlive run(), because other ranks may still read them after an error.
    virtual std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) = 0;

private:
    layouts::RingGroup group_;
};

/// A world whose ranks are threads of this process. A message is copied once, from the sender's buffer to the
/// receiver's, by whichever of the two threads comes last.
class ThreadWorld : public World {
public:
    using World::World;

    bool is_root() const override { return true; }
    bool agree(bool root_says) override { return root_says; }
    std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) override;
};

/// A world whose ranks are the processes of mpirun or srun, one rank per process; process 0 is root. A
/// processes::Session must exist. An error in a body is printed and ends all processes. Throws Error unless there are
/// exactly group.world() processes, and in a program built without MPI.
///
/// Clocks are aligned by round trips to process 0; their uncertainty is half a round trip. Messages make progress while
/// a rank waits, and from time to time while it computes.
std::unique_ptr<World> make_mpi_world(const layouts::RingGroup& group);

}  // namespace ringlab::reference
