#pragma once

#include "reference/cpu/transport.hpp"

namespace ringlab::reference {

/// Ranks as the processes of mpirun or srun, one rank each; process 0 is root. A processes::Session must exist.
/// An error in a body is printed and ends all processes. Throws Error unless there are exactly group.world() processes.
///
/// Clocks are aligned by round trips to process 0, whose half is their uncertainty; messages move while a rank waits,
/// and now and then while it computes.
std::unique_ptr<World> make_mpi_world(const layouts::RingGroup& group);

}  // namespace ringlab::reference
