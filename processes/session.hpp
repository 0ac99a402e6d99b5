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

/// A host of a run, and the ranks of its processes, ascending. The name is unique: if several hosts have the same name,
/// it is "NAME (of rank 3)".
struct Host {
    std::string name;
    std::vector<int> ranks;
};

/// Hosts in the order of their first ranks. For each rank the arguments have the first rank of its host, and the host's
/// name.
std::vector<Host> hosts_from(const std::vector<int>& first_ranks, const std::vector<std::string>& names);

/// MPI for the lifetime of the object; main() makes one before anything else of MPI is used. Throws Error in a program
/// that was built without MPI.
///
/// While a Session exists, the processes exchange heartbeats, whatever they compute, write or wait for. If a process
/// sends none for `patience`, dies, or ends with an error, all processes end with a non-zero status and one line on
/// stderr.
class Session {
public:
    Session(int& argc, char**& argv, Clock::duration patience);
    /// Waits for all processes, however long they take. The processes of a host end together, and notice if one of them
    /// is stopped meanwhile. If a process is alone on its host, no other notices a stop after its MPI_Finalize() has
    /// begun.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// The session that main() holds. Throws Error if there is none.
    static Session& current();

    int rank() const;
    int size() const;

    /// Index of this process among those of its host.
    int rank_on_host() const;

    const std::vector<Host>& hosts() const;

    /// All-gather: returns the text `own` of every process, by rank. All processes call it.
    std::vector<std::string> tell_all(const std::string& own);

    /// Sets a text that is appended when this process reports that another one is gone.
    void advise(const std::string& advice);

    /// Tells the others that this process computes, or that it no longer does.
    void set_computing(bool computing);

    /// Whether another process computes, as far as is known. The answer may be some tenths of a second old (or of
    /// `patience`, if that is less).
    bool others_compute() const;

    /// Ends all processes with a non-zero status, after an error for which others may be waiting in vain. Prints
    /// `message`, unless another process has already said why the run ends. No destructor runs, because MPI or a device
    /// may still be writing to memory of this process.
    [[noreturn]] void end(const std::string& message);

    struct Impl;
    Impl& impl() { return *impl_; }

private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace ringlab::processes
