#include "gpu/team/team.hpp"

#include "processes/peers.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace ringlab::gpu {

using processes::append;
using processes::take;
namespace {

class ThreadTeam : public Team {
public:
    explicit ThreadTeam(int members) : given_(static_cast<std::size_t>(members)) {
        require(members >= 1, "a team of {} members; it needs at least one", members);
    }

    int size() const override { return static_cast<int>(given_.size()); }
    int first_local() const override { return 0; }
    int local_size() const override { return size(); }

    std::vector<Bytes> all_gather(int member, Bytes bytes, Clock::duration timeout) override {
        std::unique_lock lock(mutex_);
        given_[static_cast<std::size_t>(member)] = std::move(bytes);
        const auto round = round_;
        if (++arrived_ == size()) {
            collected_ = given_;  // stays until all have come to the next round, so everyone can read it
            arrived_ = 0;
            ++round_;
            changed_.notify_all();
            return collected_;
        }
        const bool met = changed_.wait_for(lock, timeout, [&] { return round_ != round || cancelled(); });
        if (round_ != round) return collected_;
        if (cancelled()) throw Cancelled();
        require(met, "member {} of {} has waited {} s for the others", member, size(),
                std::chrono::duration<double>(timeout).count());
        return {};
    }

    std::vector<Bytes> gather_to_root(Bytes bytes, Clock::duration) override { return {std::move(bytes)}; }

    void give_up(const std::string&) override { cancel(); }

    Clock::duration clock_offset() const override { return {}; }
    Clock::duration clock_uncertainty() const override { return {}; }

    void cancel() noexcept override {
        const std::lock_guard lock(mutex_);
        cancelled_ = true;
        changed_.notify_all();
    }
    bool cancelled() const noexcept override { return cancelled_; }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Bytes> given_, collected_;
    int arrived_ = 0;
    std::uint64_t round_ = 0;
    std::atomic<bool> cancelled_ = false;
};

}  // namespace

std::unique_ptr<Team> make_thread_team(int members) { return std::make_unique<ThreadTeam>(members); }

void Team::together(int member, Clock::duration timeout, const std::function<void()>& step) {
    std::string complaint;
    try {
        step();
    } catch (const std::exception& error) {
        complaint = error.what();
    }
    Bytes own;
    append(own, std::vector<char>(complaint.begin(), complaint.end()));
    const auto all = all_gather(member, std::move(own), timeout);
    require(complaint.empty(), "{}", complaint);
    for (std::size_t other = 0; other < all.size(); ++other) {
        std::span<const std::byte> bytes(all[other]);
        std::vector<char> text;
        take(bytes, text);
        require(text.empty(), "rank {} cannot: {}", other, std::string(text.begin(), text.end()));
    }
}

void Team::start_together(int member, Clock::duration timeout) {
    const auto now = (Clock::now() + clock_offset()).time_since_epoch().count();
    Bytes bytes(sizeof(now));
    std::memcpy(bytes.data(), &now, sizeof(now));
    auto latest = now;
    for (const auto& other : all_gather(member, std::move(bytes), timeout)) {
        auto time = now;
        std::memcpy(&time, other.data(), sizeof(time));
        latest = std::max(latest, time);
    }
    // Longer than it takes the others to wake up, or to get the message.
    constexpr auto margin = std::chrono::microseconds(300);
    const auto start = Clock::time_point(Clock::duration(latest)) + margin - clock_offset();
    while (Clock::now() < start) {
    }
}

void Team::run(const std::function<void(int member)>& body) {
    std::mutex mutex;
    std::exception_ptr first;
    const auto guarded = [&](int member) {
        try {
            body(member);
        } catch (const Cancelled&) {
            // The member that failed has stored its error before it cancelled this one.
        } catch (...) {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
            cancel();
        }
    };
    if (local_size() == 1) {
        guarded(first_local());
    } else {
        std::vector<std::jthread> threads;
        try {
            for (int i = 0; i < local_size(); ++i) threads.emplace_back(guarded, first_local() + i);
        } catch (const std::system_error&) {
            // Those that have begun wait for the others.
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
            cancel();
        }
    }
    if (first) std::rethrow_exception(first);
    if (cancelled()) throw Cancelled();  // in an earlier run
}

}  // namespace ringlab::gpu
