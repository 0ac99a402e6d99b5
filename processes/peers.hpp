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

/// To be added to this process's clock to get that of process 0, and by how much that may be wrong.
struct ClockOffset {
    Clock::duration ahead{}, uncertainty{};
};

/// What the processes of a session tell each other before and after they compute. Every call is made by all of them, in
/// the same order; who has waited for another one for longer than `limit` ends the run. Only where there is MPI.
class Peers {
public:
    explicit Peers(Session& session) : session_(session) {}

    /// `what` ends the sentence "rank 1 has waited 10 s for".
    void barrier(const char* what, Clock::duration limit);

    /// What every process gave.
    std::vector<Bytes> all_gather(const Bytes& bytes, Clock::duration limit);

    /// The same, on process 0; nothing on others.
    std::vector<Bytes> gather_to_root(Bytes bytes, Clock::duration limit);

    /// What process 0 says.
    std::int64_t broadcast(std::int64_t root_says, const char* what, Clock::duration limit);
    bool agree(bool root_says) { return broadcast(root_says, "rank 0 to say how to go on", patiently) != 0; }

    /// By round trips to process 0, of which the quickest says most: half of it is the uncertainty. However long
    /// process 0 is busy with what came before.
    ClockOffset align_clock();

private:
    void send(std::span<const std::byte> bytes, int peer, int tag, Clock::duration limit);
    void receive(std::span<std::byte> bytes, int peer, int tag, Clock::duration limit);

    Session& session_;
};

}  // namespace ringlab::processes
