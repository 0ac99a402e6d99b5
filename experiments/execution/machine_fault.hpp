#pragma once

#include "experiments/execution/ring_run.hpp"

#include <optional>
#include <string>

namespace ringlab::experiments {

/// A fault of the machine that is made on purpose during a run. --fault gives it as "KIND:RANK".
struct MachineFault {
    enum class Kind {
        slow,  ///< all that the rank computes takes four times as long
        stop,  ///< the rank's process is stopped
        kill,  ///< the rank's process is gone
    };
    Kind kind = Kind::slow;
    int rank = 0;  ///< global

    bool is_of_process() const { return kind == Kind::stop || kind == Kind::kill; }
};

/// The fault that `text` names; none for "". Throws Error that says what would be right.
std::optional<MachineFault> parse_machine_fault(const std::string& text, int world);

/// If this process is the rank of the fault, it prints a line and then stops or kills itself, soon after this call.
/// Only under MPI.
void strike_soon(const MachineFault& fault);

/// The beginning of this line.
inline constexpr const char* struck_text = "[fault] ";

/// A rank that computes more slowly than the others.
struct SlowRank {
    int replica = 0, rank = 0;
    double factor = 1;  ///< of the others' median time for the same work
};

/// The slowest rank, if it takes at least twice as long as the others. (Two threads that share a core of a processor
/// take less than twice as long as one that has it to itself.) Only attends of 0.2 ms or longer are compared, and only
/// those to the same number of visible pairs. The quickest attend of each rank counts, because nothing has disturbed
/// it.
std::optional<SlowRank> slow_rank(const std::vector<RingRun>& rings);

}  // namespace ringlab::experiments
