#include "python/library/callback_ring.hpp"

#include <cstring>

namespace ringlab::python {

using reference::Clock;
using reference::Transfer;

class CallbackRing::CallbackTransfer : public Transfer {
public:
    CallbackTransfer(CallbackRing& ring, std::uint64_t request) : ring_(ring), request_(request) {}
    std::optional<Clock::time_point> ended() override { return ring_.ended(request_); }

private:
    CallbackRing& ring_;
    const std::uint64_t request_;
};

CallbackRing::CallbackRing(const ringlab_transport& calls, int rank, int ranks, Clock::duration timeout)
    : calls_(calls), rank_(rank), ranks_(ranks), timeout_(timeout) {}

std::unique_ptr<Transfer> CallbackRing::begin(Request request, const std::function<int(std::uint64_t)>& call) {
    std::uint64_t number = 0;
    {
        const std::lock_guard lock(mutex_);
        number = next_++;
        requests_[number] = request;
    }
    require(call(number) == 0, "{}: the message could not be begun", request.what);
    return std::make_unique<CallbackTransfer>(*this, number);
}

std::unique_ptr<Transfer> CallbackRing::send(std::span<const std::byte> from, int peer, int channel) {
    return begin({{}, fmt::format("rank {} sends to rank {}", rank_, peer), {}, {}}, [&](std::uint64_t request) {
        return calls_.send(calls_.context, peer, channel, from.data(), from.size(), request);
    });
}

std::unique_ptr<Transfer> CallbackRing::receive(std::span<std::byte> into, int peer, int channel) {
    return begin({into, fmt::format("rank {} receives from rank {}", rank_, peer), {}, {}}, [&](std::uint64_t request) {
        return calls_.receive(calls_.context, peer, channel, into.size(), request);
    });
}

std::unique_ptr<Transfer> CallbackRing::fetch(std::span<std::byte>, int peer, std::size_t) {
    fail("rank {} cannot read the memory of rank {}; its owner has to send", rank_, peer);
}

void CallbackRing::done(std::uint64_t request, std::span<const std::byte> received, const char* error) {
    {
        const std::lock_guard lock(mutex_);
        const auto found = requests_.find(request);
        if (found == requests_.end()) return;
        auto& asked = found->second;
        if (error)
            asked.error = error;
        else if (received.size() != asked.into.size())
            asked.error =
                fmt::format("the message has {} bytes, its receiver expects {}", received.size(), asked.into.size());
        else if (!received.empty())
            std::memcpy(asked.into.data(), received.data(), received.size());
        asked.ended = Clock::now();
        news_ = true;
    }
    changed_.notify_all();
}

std::optional<Clock::time_point> CallbackRing::ended(std::uint64_t request) {
    const std::lock_guard lock(mutex_);
    const auto& asked = requests_.at(request);
    require(asked.error.empty(), "{}: {}", asked.what, asked.error);
    const auto time = asked.ended;
    if (time) requests_.erase(request);
    return time;
}

void CallbackRing::forget() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
}

void CallbackRing::wait(Clock::duration limit) {
    {
        std::unique_lock lock(mutex_);
        const bool came = changed_.wait_for(lock, limit, [&] { return news_; });
        news_ = false;
        if (came) return;
    }
    require(calls_.stop(calls_.context) == 0, "rank {} was told to stop", rank_);
}

}  // namespace ringlab::python
