#pragma once

#include <cstdint>
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

/// The processes that have the same launcher, by what it has told them.
std::vector<Neighbour> siblings();

/// Whether there is such a process, be it one that has ended and whose parent has not asked for its status.
bool exists(std::int64_t process);

/// Whether it runs no more.
bool has_ended(std::int64_t process);

/// Those that are stopped or gone, in words; empty if there are none.
std::string suspects_among(const std::vector<Neighbour>& processes);

}  // namespace ringlab::processes
