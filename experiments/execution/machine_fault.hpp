#pragma once

#include "experiments/execution/backend.hpp"

#include <optional>
#include <string>

namespace ringlab::experiments {

/// A fault of the machine that a run is to meet, as --fault says it: "KIND:RANK".
struct MachineFault {
    enum class Kind {
        slow,  ///< all that the rank computes takes four times as long
        flip,  ///< one bit of a message of the rank
        stop,  ///< the rank's process is stopped
        kill,  ///< the rank's process is gone
    };
    Kind kind = Kind::slow;
    int rank = 0;  ///< global

    bool is_of_process() const { return kind == Kind::stop || kind == Kind::kill; }
};

/// The fault that `text` names; none for "". Throws Error that says what would be right.
std::optional<MachineFault> parse_machine_fault(const std::string& text, int world);

/// A backend whose process stops or kills itself soon after its first run has begun, if it is the fault's rank, and
/// says so before. Only under MPI.
std::unique_ptr<Backend> struck(std::unique_ptr<Backend> backend, const MachineFault& fault);

/// Begins the line in which it says so.
inline constexpr const char* struck_text = "[fault] ";

/// A rank that computes more slowly than the others.
struct SlowRank {
    int replica = 0, rank = 0;
    double factor = 1;  ///< of the others' median time for the same work
};

/// The slowest rank, if it takes at least twice as long as the others: two threads that share a processor's core take
/// less than twice as long as one that has it to itself. Compared are attends to as many visible pairs as other ranks
/// attend to at a time, for 0.2 ms or longer; of each rank the quickest, which nothing has disturbed.
std::optional<SlowRank> slow_rank(const std::vector<std::vector<Measurement>>& repeats);

}  // namespace ringlab::experiments
