#pragma once

#include "reference/transport.hpp"

namespace ringlab::reference {

/// Whether this program was built with MPI (CMake option RINGLAB_MPI).
bool built_with_mpi();

/// MPI for the lifetime of the object; main() makes one before anything else of MPI is used. Throws Error in a program
/// that was built without MPI.
class MpiSession {
public:
    MpiSession(int& argc, char**& argv);
    ~MpiSession();
    MpiSession(const MpiSession&) = delete;
    MpiSession& operator=(const MpiSession&) = delete;

    int rank() const;
    int size() const;

    /// Waits until every process has called it.
    void barrier() const;

    /// For main()'s catch: prints `message` and ends all processes with a non-zero status, as the others may be waiting
    /// for this one.
    [[noreturn]] void abort(const std::string& message) const;
};

/// Ranks as the processes of mpirun or srun, one rank each; process 0 is root. An MpiSession must exist. An error in a
/// body is printed and ends all processes. Throws Error unless there are exactly group.world() processes.
///
/// Clocks are aligned by round trips to process 0, whose half is their uncertainty; messages move while a rank waits,
/// not while it computes, unless the MPI library itself sees to it.
std::unique_ptr<World> make_mpi_world(const layouts::RingGroup& group);

}  // namespace ringlab::reference
