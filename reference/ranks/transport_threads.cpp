#include "reference/ranks/transport.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>

namespace ringlab::reference {
namespace {

/// Thrown in the other ranks after one has failed; only the error of the failed rank is reported.
struct Stopped {};

struct Completion {
    std::atomic<bool> done = false;
    Clock::time_point at;  // written before done
};

class ThreadTransfer : public Transfer {
public:
    explicit ThreadTransfer(std::shared_ptr<const Completion> completion) : completion_(std::move(completion)) {}
    std::optional<Clock::time_point> ended() override {
        if (!completion_->done.load(std::memory_order_acquire)) return {};
        return completion_->at;
    }

private:
    std::shared_ptr<const Completion> completion_;
};

/// State that the threads share: messages that wait for their other side, barriers, and the first error.
class Hub {
public:
    explicit Hub(int ranks) : inboxes_(static_cast<std::size_t>(ranks)) {}

    struct Route {
        int source;
        int destination;
        int channel;
        auto operator<=>(const Route&) const = default;
    };

    std::shared_ptr<Completion> send(std::span<const std::byte> from, const Route& route) {
        return match(route, route.source, from, &Queues::sends, &Queues::receives,
                     [](std::span<const std::byte> mine, std::span<std::byte> theirs) { copy(mine, theirs); });
    }

    std::shared_ptr<Completion> receive(std::span<std::byte> into, const Route& route) {
        return match(route, route.destination, into, &Queues::receives, &Queues::sends,
                     [](std::span<std::byte> mine, std::span<const std::byte> theirs) { copy(theirs, mine); });
    }

    void expose(int rank, std::span<const std::byte> bytes) {
        const std::lock_guard lock(mutex_);
        inboxes_[static_cast<std::size_t>(rank)].exposed = bytes;
    }

    std::span<const std::byte> exposed(int rank) {
        const std::lock_guard lock(mutex_);
        return inboxes_[static_cast<std::size_t>(rank)].exposed;
    }

    void wait(int rank, Clock::duration limit) {
        std::unique_lock lock(mutex_);
        auto& inbox = inboxes_[static_cast<std::size_t>(rank)];
        inbox.changed.wait_for(lock, limit, [&] { return stopped_ || inbox.signals != inbox.seen; });
        inbox.seen = inbox.signals;
        throw_if_stopped();
    }

    void set_computing(bool computing) { computing_ += computing ? 1 : -1; }
    bool anyone_computes() const { return computing_ > 0; }

    /// Returns the instant at which the last rank arrived.
    Clock::time_point barrier(int rank) {
        std::unique_lock lock(mutex_);
        throw_if_stopped();
        const auto generation = barrier_generation_;
        if (++arrived_ == static_cast<int>(inboxes_.size())) {
            arrived_ = 0;
            ++barrier_generation_;
            barrier_time_ = Clock::now();
            barrier_passed_.notify_all();
            return barrier_time_;
        }
        // No time-out: a missing rank is computing, waits with its own time-out, or has left.
        barrier_passed_.wait(lock, [&] { return stopped_ || left_ > 0 || generation != barrier_generation_; });
        throw_if_stopped();
        require(generation != barrier_generation_, "rank {} waits at a barrier, but {} of {} ranks have ended", rank,
                left_, inboxes_.size());
        return barrier_time_;
    }

    /// A rank's body has returned.
    void leave() {
        const std::lock_guard lock(mutex_);
        ++left_;
        barrier_passed_.notify_all();
    }

    void fail(std::exception_ptr error) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(error);
        stopped_ = true;
        barrier_passed_.notify_all();
        for (auto& inbox : inboxes_) inbox.changed.notify_all();
    }

    std::exception_ptr error() const { return error_; }

private:
    template <class Buffer>
    struct Pending {
        Buffer buffer;
        std::shared_ptr<Completion> completion;
    };
    struct Queues {
        std::deque<Pending<std::span<const std::byte>>> sends;
        std::deque<Pending<std::span<std::byte>>> receives;
    };
    struct Inbox {
        std::condition_variable changed;
        std::uint64_t signals = 0;
        std::uint64_t seen = 0;
        std::span<const std::byte> exposed;
    };

    static void copy(std::span<const std::byte> from, std::span<std::byte> to) {
        if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    }

    void throw_if_stopped() const {
        if (stopped_) throw Stopped{};
    }

    template <class Buffer, class Mine, class Theirs, class Copy>
    std::shared_ptr<Completion> match(const Route& route, int self, Buffer buffer, Mine mine, Theirs theirs,
                                      Copy copy_between) {
        auto completion = std::make_shared<Completion>();
        std::unique_lock lock(mutex_);
        throw_if_stopped();
        auto& queues = routes_[route];
        if ((queues.*theirs).empty()) {
            (queues.*mine).push_back({buffer, completion});
            return completion;
        }
        const auto other = std::move((queues.*theirs).front());
        (queues.*theirs).pop_front();
        // Copied outside the lock, so that other pairs of ranks do not wait for it.
        lock.unlock();
        require(
            buffer.size() == other.buffer.size(),
            "rank {} sends rank {} a message on channel {} and the sizes differ: one side has {} bytes, the other {}",
            route.source, route.destination, route.channel, buffer.size(), other.buffer.size());
        copy_between(buffer, other.buffer);
        lock.lock();
        completion->at = other.completion->at = Clock::now();
        completion->done.store(true, std::memory_order_release);
        other.completion->done.store(true, std::memory_order_release);
        auto& inbox = inboxes_[static_cast<std::size_t>(self == route.source ? route.destination : route.source)];
        ++inbox.signals;
        inbox.changed.notify_all();
        return completion;
    }

    std::mutex mutex_;
    std::map<Route, Queues> routes_;
    std::vector<Inbox> inboxes_;
    std::condition_variable barrier_passed_;
    int arrived_ = 0;
    int left_ = 0;
    std::uint64_t barrier_generation_ = 0;
    Clock::time_point barrier_time_;
    std::atomic<int> computing_ = 0;
    bool stopped_ = false;
    std::exception_ptr error_;
};

class ThreadTransport : public Transport {
public:
    ThreadTransport(Hub& hub, int rank, int ranks) : hub_(hub), rank_(rank), ranks_(ranks) {}

    int rank() const override { return rank_; }

    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        check(peer);
        return std::make_unique<ThreadTransfer>(hub_.send(from, {rank_, peer, channel}));
    }

    std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) override {
        check(peer);
        return std::make_unique<ThreadTransfer>(hub_.receive(into, {peer, rank_, channel}));
    }

    void expose(std::span<const std::byte> bytes) override {
        hub_.expose(rank_, bytes);
        hub_.barrier(rank_);
    }

    void withdraw() override {
        hub_.barrier(rank_);
        hub_.expose(rank_, {});
    }

    std::unique_ptr<Transfer> fetch(std::span<std::byte> into, int peer, std::size_t offset) override {
        check(peer);
        const auto from = hub_.exposed(peer);
        require(offset <= from.size() && into.size() <= from.size() - offset,
                "rank {} fetches bytes [{}, {}) of rank {}, which exposes {}", rank_, offset, offset + into.size(),
                peer, from.size());
        if (!into.empty()) std::memcpy(into.data(), from.data() + offset, into.size());
        auto completion = std::make_shared<Completion>();
        completion->at = Clock::now();
        completion->done = true;
        return std::make_unique<ThreadTransfer>(std::move(completion));
    }

    void wait(Clock::duration limit) override { hub_.wait(rank_, limit); }
    void set_computing(bool computing) override { hub_.set_computing(computing); }
    bool others_compute() const override { return hub_.anyone_computes(); }  // the calling rank does not
    Clock::time_point start_together() override { return hub_.barrier(rank_); }
    double clock_uncertainty() const override { return 0; }  // one process, one clock

private:
    void check(int peer) const {
        require(0 <= peer && peer < ranks_, "rank {} has no peer {}; ranks are 0..{}", rank_, peer, ranks_ - 1);
    }

    Hub& hub_;
    int rank_;
    int ranks_;
};

}  // namespace

std::vector<Bytes> ThreadWorld::run(Clock::duration, const std::function<Bytes(Transport&)>& body) {
    const int ranks = group().world();
    Hub hub(ranks);
    std::vector<Bytes> results(static_cast<std::size_t>(ranks));
    {
        const auto run_rank = [&](int rank) {
            try {
                ThreadTransport transport(hub, rank, ranks);
                results[static_cast<std::size_t>(rank)] = body(transport);
                hub.leave();
            } catch (const Stopped&) {
            } catch (...) {
                hub.fail(std::current_exception());
            }
        };
        std::vector<std::jthread> threads;
        try {
            for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
        } catch (const std::system_error& error) {
            // The threads that have started wait for the others.
            hub.fail(std::make_exception_ptr(Error(
                fmt::format("{} ranks need a thread each, but the system could not start more than {}: {}; use fewer "
                            "ranks",
                            ranks, threads.size(), error.what()))));
        }
    }
    if (hub.error()) std::rethrow_exception(hub.error());
    return results;
}

}  // namespace ringlab::reference
