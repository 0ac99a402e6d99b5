#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ringlab::processes {

/// Another process of this host and run.
struct Neighbour {
    int rank = 0;
    std::int64_t process = 0;
};

/// "rank 3", as the launcher has told this process, before MPI can be asked; "process 1234" if none has.
std::string name_by_launcher();

/// Whether there is such a process, be it one that has ended and whose parent has not asked for its status.
bool exists(std::int64_t process);

/// Whether it runs no more.
bool has_ended(std::int64_t process);

/// Those that are stopped or gone, in words; empty if there are none.
std::string suspects_among(const std::vector<Neighbour>& processes);

/// The processes that have the same launcher, by what it has told them, before MPI says who takes part: whoever was
/// seen once is missed when it is gone. One thread at a time.
class Siblings {
public:
    /// Looks who is there now.
    void look();

    /// Those that are stopped or have died, in words; but for those that the launcher has asked to end. Where all
    /// processes are on this host, also ranks that were never seen.
    std::string suspects();

private:
    std::map<std::int64_t, int> ranks_;  // by process
};

}  // namespace ringlab::processes
