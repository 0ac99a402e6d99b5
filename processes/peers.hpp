#pragma once

#include "processes/session.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace ringlab::processes {

using Bytes = std::vector<std::byte>;

/// Waits as long as the other processes live.
constexpr auto patiently = Clock::duration::max();

/// `ahead` is added to this process's clock to get that of process 0; `uncertainty` is its largest error.
struct ClockOffset {
    Clock::duration ahead{}, uncertainty{};
};

/// Collective calls between the processes of a session, for use before and after they compute. All processes make the
/// same calls in the same order. If a process waits for another one for longer than `limit`, it ends the run. Only with
/// MPI.
class Peers {
public:
    explicit Peers(Session& session) : session_(session) {}

    /// `what` ends the sentence "rank 1 has waited 10 s for".
    void barrier(const char* what, Clock::duration limit);

    /// All-gather: what every process gave, by rank.
    std::vector<Bytes> all_gather(const Bytes& bytes, Clock::duration limit);

    /// Gather: the same on process 0, and nothing on the others.
    std::vector<Bytes> gather_to_root(Bytes bytes, Clock::duration limit);

    /// Broadcast: what process 0 gave.
    std::int64_t broadcast(std::int64_t root_says, const char* what, Clock::duration limit);
    bool agree(bool root_says) { return broadcast(root_says, "rank 0 to say how to go on", patiently) != 0; }

    /// Measured by round trips to process 0. The quickest one counts, and half of it is the uncertainty. Waits without
    /// limit for process 0 to begin.
    ClockOffset align_clock();

private:
    void send(std::span<const std::byte> bytes, int peer, int tag, Clock::duration limit);
    void receive(std::span<std::byte> bytes, int peer, int tag, Clock::duration limit);

    Session& session_;
};

}  // namespace ringlab::processes
