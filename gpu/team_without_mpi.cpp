#include "gpu/team.hpp"

// What team.hpp promises of MPI, in a program built without it.
namespace ringlab::gpu {
namespace {

[[noreturn]] void refuse() {
    fail("this program was built without MPI; configure it with -DRINGLAB_MPI=ON, or use one process");
}

}  // namespace

std::unique_ptr<Team> make_mpi_team(int*, char***) { refuse(); }
void abort_mpi(const std::string&) {}
int mpi_rank_on_host() { refuse(); }

}  // namespace ringlab::gpu
