#pragma once

#include "layouts/group.hpp"
#include "layouts/schedule.hpp"

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

/// A send, receive or fetch under way. The bytes it was started with must outlive it.
class Transfer {
public:
    virtual ~Transfer() = default;

    /// When it ended, on this process's clock; nothing while it is under way. Throws Error if it failed.
    virtual std::optional<Clock::time_point> ended() = 0;
};

/// What one rank can do with others. Ranks here are global ranks: whoever knows a peer by its ring rank translates it
/// by layouts::RingGroup first. To be used by the rank's own thread alone.
class Transport {
public:
    virtual ~Transport() = default;

    virtual int rank() const = 0;

    /// Messages between two ranks on one channel match in order; a receive of another size than its message
    /// throws Error, here or from ended().
    virtual std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) = 0;
    virtual std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) = 0;

    /// Makes `bytes` readable by every rank until withdraw(). Both are called by all ranks, and wait for all.
    virtual void expose(std::span<const std::byte> bytes) = 0;
    virtual void withdraw() = 0;

    /// Reads what `peer` exposes, from byte `offset` on; the peer takes no part in it.
    virtual std::unique_ptr<Transfer> fetch(std::span<std::byte> into, int peer, std::size_t offset) = 0;

    /// Sleeps until a transfer of this rank may have ended, at most for `limit`; may return early.
    virtual void wait(Clock::duration limit) = 0;

    /// This rank begins to compute, or is done with it.
    virtual void set_computing(bool computing) = 0;

    /// Whether another rank is known to compute: a wait for it, however long, does not mean that it is stuck.
    virtual bool others_compute() const = 0;

    /// Called by all ranks; returns one instant, common to all and not later than any return, on this process's clock.
    virtual Clock::time_point start_together() = 0;

    /// Seconds by which another rank's clock may differ from what start_together() assumes.
    virtual double clock_uncertainty() const = 0;
};

/// Ranks that can run and reach each other: `group.world()` of them, in one process or in many.
class World {
public:
    explicit World(layouts::RingGroup group) : group_(group) {}
    virtual ~World() = default;
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    const layouts::RingGroup& group() const { return group_; }

    /// Whether results come to this process.
    virtual bool is_root() const = 0;

    /// What the root process says, on every process, which all call it; waits for the root as long as it lives.
    virtual bool agree(bool root_says) = 0;

    /// Calls `body` once for every rank, all at the same time, and returns what they gave, by global rank; on a process
    /// that is not root nothing. Waits for all ranks together last at most about `timeout` where a missing rank could
    /// not be noticed otherwise. If a body throws, all ranks stop, and the first error is thrown here or, where other
    /// processes would wait forever, ends the run with its message and a non-zero exit status.
    ///
    /// Buffers given to a transport must outlive run(): after an error, other ranks may still be reading them.
    virtual std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) = 0;

private:
    layouts::RingGroup group_;
};

}  // namespace ringlab::reference
