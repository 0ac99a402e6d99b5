#pragma once

#include "processes/shared_memory.hpp"
#include "processes/waiting.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace ringlab::processes {

/// An all-gather among ranks of one host, through shared memory, repeated again and again: in each round every rank
/// gives a block of the same size and gets those of all. That takes microseconds, where sockets take hundreds.
class HostAllGather {
public:
    /// On rank 0. Throws Error if the system gives no memory.
    HostAllGather(int ranks, std::size_t bytes);
    /// On another rank, by the address that rank 0 has told. Throws Error if the memory of rank 0 cannot be opened, as
    /// from another host or container.
    HostAllGather(const SharedMemory::Address& address, int rank, int ranks, std::size_t bytes);
    ~HostAllGather();
    HostAllGather(const HostAllGather&) = delete;
    HostAllGather& operator=(const HostAllGather&) = delete;

    SharedMemory::Address address() const { return memory_.address(); }

    /// To be called on rank 0 when all have opened it: nobody can open it afterwards.
    void all_have_it() { memory_.all_have_it(); }

    /// Begins a round with this rank's block. The round before must have been finished.
    void begin(const void* block);

    /// Waits at most so long for the blocks of all ranks. Once they are there it copies them to `blocks`, in the order
    /// of the ranks, and returns true. Throws Error if a rank that has not begun the round has left or its process has
    /// ended, or if the round has waited longer than `limit`.
    bool finish(void* blocks, Clock::duration most, Clock::duration limit);

    /// This rank will begin no other round; the others hear of it when they wait.
    void leave();

private:
    struct Place;
    Place& place(int rank) const;
    std::byte* block(int rank) const;
    /// The first rank that has not begun this round.
    std::optional<int> missing() const;
    std::string why_missing(int rank) const;

    int rank_, ranks_;
    std::size_t bytes_;
    SharedMemory memory_;
    std::uint64_t round_ = 0;
    Waiting waiting_;
    Clock::duration looked_{};  // how long the round had waited when processes were last looked at
};

}  // namespace ringlab::processes
