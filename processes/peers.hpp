#pragma once

#include "layouts/basics/require.hpp"
#include "processes/session.hpp"

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace ringlab::processes {

using Bytes = std::vector<std::byte>;

// Ranks exchange vectors, one after another in one piece of memory. take() throws Error if the bytes end too early.

template <class Element>
void append(Bytes& bytes, const std::vector<Element>& values) {
    static_assert(std::is_trivially_copyable_v<Element>);
    const std::size_t count = values.size(), begin = bytes.size();
    bytes.resize(begin + sizeof(count) + count * sizeof(Element));
    std::memcpy(bytes.data() + begin, &count, sizeof(count));
    if (count > 0) std::memcpy(bytes.data() + begin + sizeof(count), values.data(), count * sizeof(Element));
}

template <class Element>
void take(std::span<const std::byte>& bytes, std::vector<Element>& values) {
    std::size_t count = 0;
    const auto require_bytes = [&](bool is_there) {
        require(is_there, "another rank's message of {} bytes is too short; do all ranks run the same build?",
                bytes.size());
    };
    require_bytes(bytes.size() >= sizeof(count));
    std::memcpy(&count, bytes.data(), sizeof(count));
    require_bytes(count <= (bytes.size() - sizeof(count)) / sizeof(Element));
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), bytes.data() + sizeof(count), count * sizeof(Element));
    bytes = bytes.subspan(sizeof(count) + count * sizeof(Element));
}

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
