#include "processes/session.hpp"

// The functions of session.hpp in a program built without MPI.
namespace ringlab::processes {
namespace {

[[noreturn]] void refuse() {
    fail("this program was built without MPI; configure it with -DRINGLAB_MPI=ON, or run the ranks as threads");
}

}  // namespace

struct Session::Impl {};

bool built_with_mpi() { return false; }

Session::Session(int&, char**&, Clock::duration) { refuse(); }
Session::~Session() = default;
Session& Session::current() { refuse(); }
int Session::rank() const { refuse(); }
int Session::size() const { refuse(); }
int Session::rank_on_host() const { refuse(); }
const std::vector<Host>& Session::hosts() const { refuse(); }
std::vector<std::string> Session::tell_all(const std::string&) { refuse(); }
void Session::advise(const std::string&) { refuse(); }
void Session::set_computing(bool) { refuse(); }
bool Session::others_compute() const { refuse(); }
void Session::end(const std::string&) { refuse(); }

}  // namespace ringlab::processes
