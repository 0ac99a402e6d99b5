#pragma once

#include "layouts/basics/require.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace ringlab::processes {

using Clock = std::chrono::steady_clock;

/// Whether this program was built with MPI (CMake option RINGLAB_MPI).
bool built_with_mpi();

/// A host of a run, and the ranks of its processes, ascending. The name is unique: where several hosts call themselves
/// the same, "NAME (of rank 3)".
struct Host {
    std::string name;
    std::vector<int> ranks;
};

/// Hosts in the order of their first ranks, from what each rank says: the first rank of its host, and the host's name.
std::vector<Host> hosts_from(const std::vector<int>& first_ranks, const std::vector<std::string>& names);

/// MPI for the lifetime of the object; main() makes one before anything else of MPI is used. Throws Error in a program
/// that was built without MPI.
///
/// Until its end the processes tell each other all the while that they are alive, whatever they compute, write or wait
/// for. If one has been silent for `patience`, has died or ends with an error, all end, with one line on stderr and a
/// status that is not 0.
class Session {
public:
    Session(int& argc, char**& argv, Clock::duration patience);
    /// Waits for all processes, however long they take. Those of a host end together, and notice one that is stopped
    /// meanwhile; one that is alone on its host is missed by nobody from MPI_Finalize() on.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// The one that main() holds; throws Error if there is none.
    static Session& current();

    int rank() const;
    int size() const;

    /// Place of this process among those of its host.
    int rank_on_host() const;

    const std::vector<Host>& hosts() const;

    /// What every process says, by rank; all call it.
    std::vector<std::string> tell_all(const std::string& own);

    /// What follows the line in which this process says that another one is gone, from now on.
    void advise(const std::string& advice);

    /// This process begins to compute, or is done with it.
    void set_computing(bool computing);

    /// Whether another process is known to compute; some tenths of a second late, or of `patience` if that is less.
    bool others_compute() const;

    /// For errors after which others may be waiting for this process: prints `message`, unless another process has
    /// said why the run ends, and ends all processes with a non-zero status. Nothing is unwound: what MPI or a device
    /// may still be writing to stays.
    [[noreturn]] void end(const std::string& message);

    struct Impl;
    Impl& impl() { return *impl_; }

private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace ringlab::processes
