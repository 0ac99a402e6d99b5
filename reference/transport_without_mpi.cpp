#include "reference/transport_mpi.hpp"

// What transport_mpi.hpp promises, in a program built without MPI.
namespace ringlab::reference {
namespace {

[[noreturn]] void refuse() {
    fail("this program was built without MPI; configure it with -DRINGLAB_MPI=ON, or run the ranks as threads");
}

}  // namespace

bool built_with_mpi() { return false; }

MpiSession::MpiSession(int&, char**&) { refuse(); }
MpiSession::~MpiSession() = default;
int MpiSession::rank() const { refuse(); }
int MpiSession::size() const { refuse(); }
void MpiSession::barrier() const { refuse(); }
void MpiSession::abort(const std::string&) const { refuse(); }

std::unique_ptr<World> make_mpi_world(const layouts::RingGroup&) { refuse(); }

}  // namespace ringlab::reference
