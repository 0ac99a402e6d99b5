#pragma once

#include "python/library/ringlab_cpu.h"
#include "reference/ranks/transport.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

namespace ringlab::python {

/// The transport of a CPU rank whose messages the caller of the C functions carries, through callbacks. Each request
/// has a number, so that a callback that comes late cannot touch memory that no longer exists.
class CallbackRing : public reference::Transport {
public:
    CallbackRing(const ringlab_transport& calls, int rank, int ranks, reference::Clock::duration timeout);

    int rank() const override { return rank_; }
    int ranks() const { return ranks_; }
    reference::Clock::duration timeout() const { return timeout_; }

    std::unique_ptr<reference::Transfer> send(std::span<const std::byte> from, int peer, int channel) override;
    std::unique_ptr<reference::Transfer> receive(std::span<std::byte> into, int peer, int channel) override;

    /// A request has ended; `error` is null if it succeeded. May be called by any thread.
    void done(std::uint64_t request, std::span<const std::byte> received, const char* error);

    /// The pass has ended: requests that are still under way are forgotten.
    void forget();

    /// Sleeps until a request ends. Throws Error if the caller wants the pass to stop.
    void wait(reference::Clock::duration limit) override;

    // Functions without use here. No rank reads another's memory, because programs are resolved with Fetches::served.
    // Messages alone keep ranks in step, and each rank has its own clock.
    void expose(std::span<const std::byte>) override {}
    void withdraw() override {}
    std::unique_ptr<reference::Transfer> fetch(std::span<std::byte>, int, std::size_t) override;
    reference::Clock::time_point start_together() override { return reference::Clock::now(); }
    double clock_uncertainty() const override { return 0; }
    void set_computing(bool) override {}
    bool others_compute() const override { return false; }

    /// Why the ring cannot be used any more; empty if it can.
    std::string broken;

private:
    struct Request {
        std::span<std::byte> into;  // of a receive
        std::string what;
        std::optional<reference::Clock::time_point> ended;
        std::string error;
    };
    class CallbackTransfer;

    std::unique_ptr<reference::Transfer> begin(Request request, const std::function<int(std::uint64_t)>& call);
    std::optional<reference::Clock::time_point> ended(std::uint64_t request);

    const ringlab_transport calls_;
    const int rank_, ranks_;
    const reference::Clock::duration timeout_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t next_ = 0;
    bool news_ = false;
    std::map<std::uint64_t, Request> requests_;
};

}  // namespace ringlab::python
