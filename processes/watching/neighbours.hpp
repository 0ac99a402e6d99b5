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

/// The name of this process before MPI is started: "rank 3" if the launcher has set an environment variable that says
/// so, otherwise "process 1234".
std::string name_by_launcher();

/// The number of where process numbers have the same meaning: this boot of this kernel, and this container.
std::int64_t process_space();

/// Whether there is a process with this number. A process that has ended still exists until its parent asks for its
/// status.
bool exists(std::int64_t process);

/// Whether the process has ended, whether or not it still exists().
bool has_ended(std::int64_t process);

/// The processes that are stopped or gone, as a text; empty if there are none.
std::string suspects_among(const std::vector<Neighbour>& processes);

/// The processes of the same launcher on this host, for the time before MPI says which processes take part. They are
/// found by the environment variables that the launcher has set. A process that was seen once and is gone counts as
/// dead. Only one thread at a time may use it.
class Siblings {
public:
    /// Looks for processes that are there now, and remembers them.
    void look();

    /// The processes that are stopped or have died, as a text, without those that the launcher has asked to end. If all
    /// processes of the run are on this host, ranks that were never seen are named too.
    std::string suspects();

private:
    std::map<std::int64_t, int> ranks_;  // by process
};

}  // namespace ringlab::processes
