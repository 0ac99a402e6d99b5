#include "processes/host_all_gather.hpp"

#include "layouts/basics/require.hpp"
#include "processes/watching/neighbours.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

namespace ringlab::processes {

/// A rank's words besides its blocks, on cache lines of their own.
struct alignas(64) HostAllGather::Place {
    std::atomic<std::uint64_t> round;
    std::atomic<std::int64_t> process;
    std::atomic<bool> left;
};

namespace {

// Blocks of one round may still be read while a rank writes that of the next. It can be no further ahead, as it must
// have seen that all others have begun the next round.
constexpr std::size_t rounds_kept = 2;

constexpr std::size_t whole_lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t memory_bytes(int ranks, std::size_t bytes, std::size_t place) {
    return static_cast<std::size_t>(ranks) * (place + rounds_kept * whole_lines(bytes));
}

/// At first without giving up the processor: ranks come to a round within microseconds of each other.
void pause(Clock::duration waited) {
    using namespace std::chrono_literals;
    if (waited < 50us)
        std::atomic_signal_fence(std::memory_order_seq_cst);
    else if (waited < 1ms)
        sched_yield();
    else
        std::this_thread::sleep_for(std::min<Clock::duration>(waited / 16, 1ms));
}

}  // namespace

HostAllGather::HostAllGather(int ranks, std::size_t bytes)
    : rank_(0), ranks_(ranks), bytes_(bytes), memory_(memory_bytes(ranks, bytes, sizeof(Place))) {
    place(rank_).process = getpid();
}

HostAllGather::HostAllGather(const SharedMemory::Address& address, int rank, int ranks, std::size_t bytes)
    : rank_(rank), ranks_(ranks), bytes_(bytes), memory_(address, memory_bytes(ranks, bytes, sizeof(Place))) {
    place(rank_).process = getpid();
}

HostAllGather::~HostAllGather() {
    // Not in a process that was forked off since, such as one that loads data: the rank itself goes on.
    if (place(rank_).process == getpid()) leave();
}

HostAllGather::Place& HostAllGather::place(int rank) const { return static_cast<Place*>(memory_.data())[rank]; }

std::byte* HostAllGather::block(int rank) const {
    auto* blocks = static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(ranks_) * sizeof(Place);
    const auto index = static_cast<std::size_t>(rank) * rounds_kept + round_ % rounds_kept;
    return blocks + index * whole_lines(bytes_);
}

void HostAllGather::begin(const void* own) {
    ++round_;
    std::memcpy(block(rank_), own, bytes_);
    place(rank_).round.store(round_, std::memory_order_release);
    waiting_.restart();
    looked_ = {};
}

bool HostAllGather::finish(void* blocks, Clock::duration most, Clock::duration limit) {
    using namespace std::chrono_literals;
    const auto from = waiting_.so_far();
    for (auto absent = missing(); absent; absent = missing()) {
        const auto waited = waiting_.so_far();
        if (waited - looked_ > 20ms) {
            looked_ = waited;
            const auto reason = why_missing(*absent);
            // It may have begun the round and ended since.
            require(reason.empty() || !missing(), "rank {} {}", *absent, reason);
        }
        require(waited <= limit, "rank {} did not come within {:g} s", *absent,
                std::chrono::duration<double>(limit).count());
        if (waited - from >= most) return false;
        pause(waited);
    }
    for (int rank = 0; rank < ranks_; ++rank)
        std::memcpy(static_cast<std::byte*>(blocks) + static_cast<std::size_t>(rank) * bytes_, block(rank), bytes_);
    return true;
}

void HostAllGather::leave() { place(rank_).left.store(true, std::memory_order_release); }

std::optional<int> HostAllGather::missing() const {
    for (int rank = 0; rank < ranks_; ++rank)
        if (place(rank).round.load(std::memory_order_acquire) < round_) return rank;
    return {};
}

std::string HostAllGather::why_missing(int rank) const {
    if (place(rank).left.load(std::memory_order_acquire)) return "has left";
    const auto process = place(rank).process.load();
    return has_ended(process) ? fmt::format("is gone (process {} has ended)", process) : "";
}

}  // namespace ringlab::processes
