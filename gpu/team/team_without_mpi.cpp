#include "gpu/team/team.hpp"

// The MPI team of team.hpp in a program built without MPI.
namespace ringlab::gpu {

std::unique_ptr<Team> make_mpi_team() {
    fail("this program was built without MPI; configure it with -DRINGLAB_MPI=ON, or use one process");
}

}  // namespace ringlab::gpu
