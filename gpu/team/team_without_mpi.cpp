#include "gpu/team/team.hpp"

// What team.hpp promises of MPI, in a program built without it.
namespace ringlab::gpu {

std::unique_ptr<Team> make_mpi_team() {
    fail("this program was built without MPI; configure it with -DRINGLAB_MPI=ON, or use one process");
}

}  // namespace ringlab::gpu
