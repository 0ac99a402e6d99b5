#pragma once

#include "python/library/ringlab_cpu.h"
#include "reference/ranks/transports/transport.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

namespace ringlab::python {

/// A rank's way to the others through somebody else's messages: what the C functions' ring is made of. What is under
/// way is known by number, so that whoever carries a message may be late without touching memory that is gone.
class CallbackRing : public reference::Transport {
public:
    CallbackRing(const ringlab_transport& calls, int rank, int ranks, reference::Clock::duration timeout);

    int rank() const override { return rank_; }
    int ranks() const { return ranks_; }
    reference::Clock::duration timeout() const { return timeout_; }

    std::unique_ptr<reference::Transfer> send(std::span<const std::byte> from, int peer, int channel) override;
    std::unique_ptr<reference::Transfer> receive(std::span<std::byte> into, int peer, int channel) override;

    /// A request has ended, well if `error` is null; from any thread.
    void done(std::uint64_t request, std::span<const std::byte> received, const char* error);

    /// The pass is over: what is still under way is nobody's any more.
    void forget();

    /// Sleeps until a request ends. Throws Error if the caller wants the pass to stop.
    void wait(reference::Clock::duration limit) override;

    // No rank reads another's memory here: programs are resolved with Fetches::served. Messages keep ranks together,
    // and times are a rank's own.
    void expose(std::span<const std::byte>) override {}
    void withdraw() override {}
    std::unique_ptr<reference::Transfer> fetch(std::span<std::byte>, int, std::size_t) override;
    reference::Clock::time_point start_together() override { return reference::Clock::now(); }
    double clock_uncertainty() const override { return 0; }
    void set_computing(bool) override {}
    bool others_compute() const override { return false; }

    /// Why the ring can be used no more; empty if it can.
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
