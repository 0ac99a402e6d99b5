#pragma once

#include "reference/ranks/transports/transport.hpp"

namespace ringlab::reference {

/// A world whose ranks are the processes of mpirun or srun, one rank per process; process 0 is root. A
/// processes::Session must exist. An error in a body is printed and ends all processes. Throws Error unless there are
/// exactly group.world() processes.
///
/// Clocks are aligned by round trips to process 0; their uncertainty is half a round trip. Messages make progress while
/// a rank waits, and from time to time while it computes.
std::unique_ptr<World> make_mpi_world(const layouts::RingGroup& group);

}  // namespace ringlab::reference
