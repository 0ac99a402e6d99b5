#include "reference/ranks/transport.hpp"

// make_mpi_world() in a program built without MPI.
namespace ringlab::reference {

std::unique_ptr<World> make_mpi_world(const layouts::RingGroup&) {
    fail("this program was built without MPI; configure it with -DRINGLAB_MPI=ON, or run the ranks as threads");
}

}  // namespace ringlab::reference
