#include "processes/watching/first_error.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace ringlab::processes {

bool FirstError::say(const std::string& message) {
    if (said_.exchange(true))
        for (;;) pause();
    // Launchers take less time than this to end the processes of other hosts.
    if (waits_) std::this_thread::sleep_for(std::chrono::seconds(5));
    // MPI libraries can fill the pipe with complaints of their own; another process may get through.
    pollfd errors{STDERR_FILENO, POLLOUT, 0};
    constexpr int limit_ms = 500;
    first_ = poll(&errors, 1, limit_ms) > 0 && claim();
    if (!first_) return false;
    const auto line = program_ + ": " + message + "\n";
    // One write: lines of several processes do not mix. If nobody reads it any more, nothing can be done.
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
    return true;
}

void say_first_error(const std::string& program, const std::string& message) {
    const bool launched = std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("PMIX_RANK") || std::getenv("PMI_RANK");
    if (launched)
        FirstError(program).say(message);
    else
        std::fprintf(stderr, "%s: %s\n", program.c_str(), message.c_str());
}

void FirstError::exit() const {
    using std::chrono::seconds;
    // A process that was not the first waits for the launcher to end it. The launcher then reports one failure less.
    if (!first_ || must_stay_) std::this_thread::sleep_for(first_ ? seconds(1) : seconds(3));
    _exit(EXIT_FAILURE);
}

bool FirstError::claim() {
    // PMIx launchers (Open MPI, PRRTE, Slurm) have a folder for each run on each host and clear it away in the end.
    const char* folder = std::getenv("PMIX_SERVER_TMPDIR");
    const char* run = std::getenv("PMIX_NAMESPACE");
    if (folder && run) {
        std::string file = run;
        std::replace(file.begin(), file.end(), '/', '_');
        file = std::string(folder) + "/ringlab-first-error-" + file;
        const int made = open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (made >= 0) close(made);
        if (made >= 0 || errno == EEXIST) return made >= 0;
    }
    // Other launchers: a socket name that only one of the launcher's children can bind. A name that begins with a zero
    // byte is abstract: it is no file, and is free again when the process ends.
    must_stay_ = true;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const auto name = "ringlab-first-error-" + std::to_string(getppid());
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const int holder = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);  // until the process ends
    return holder < 0 || bind(holder, reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

}  // namespace ringlab::processes
