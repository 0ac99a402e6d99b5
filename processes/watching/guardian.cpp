#include "processes/watching/guardian.hpp"

#include "layouts/basics/require.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace ringlab::processes {
namespace {

// A signal handler may touch only these; so one guardian at a time listens to SIGTERM.
std::array<int, 2> alarm_pipe{-1, -1};
struct sigaction before {};

void note_signal(int) {
    const int error = errno;
    const char byte = 't';
    [[maybe_unused]] const auto written = write(alarm_pipe[1], &byte, 1);
    errno = error;
}

}  // namespace

Guardian::Guardian(FirstError& first_error, Clock::duration patience)
    : first_error_(first_error),
      patience_(patience),
      interval_(
          std::clamp<Clock::duration>(patience / 20, std::chrono::milliseconds(5), std::chrono::milliseconds(200))),
      name_(fmt::format("process {}", getpid())) {
    require(pipe2(alarm_pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0, "cannot make a pipe: {}", std::strerror(errno));
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, &before);
    thread_ = std::thread([this] { run(); });
}

Guardian::~Guardian() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    const char byte = 's';
    [[maybe_unused]] const auto written = write(alarm_pipe[1], &byte, 1);
    thread_.join();
    sigaction(SIGTERM, &before, nullptr);
    for (auto& end : alarm_pipe) close(std::exchange(end, -1));
}

void Guardian::watch(const char* call, Clock::duration limit) {
    const std::lock_guard lock(mutex_);
    call_ = call;
    limit_ = limit;
    waited_ = {};
}

void Guardian::run() {
    pthread_setname_np(pthread_self(), "guardian");  // for whoever looks at the process
    auto last = Clock::now();
    for (;;) {
        pollfd alarm{alarm_pipe[0], POLLIN, 0};
        poll(&alarm, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(interval_).count()));
        char signal = 0;
        const bool rung = read(alarm_pipe[0], &signal, 1) == 1;
        const auto now = Clock::now();
        // If more time has passed, this process itself was stopped. A busy machine alone does not cause such a delay.
        const auto elapsed = std::min<Clock::duration>(now - last, interval_ + std::chrono::seconds(1));
        last = now;
        std::string found;
        {
            const std::lock_guard lock(mutex_);
            if (stop_) return;
            found = rung ? reason_to_end() : complaint(elapsed);
            if (found.empty()) continue;
            found += advice_;
        }
        first_error_.say(found);
        first_error_.exit();
    }
}

/// SIGTERM: when a process has died, a launcher asks the others to end, often before they notice.
std::string Guardian::reason_to_end() const {
    if (const auto suspects = suspects_ ? suspects_() : std::string(); !suspects.empty())
        return fmt::format("{}: {}", name_, suspects);
    return fmt::format(
        "{} is asked to end (SIGTERM), as launchers do when they are interrupted or another process has died", name_);
}

std::string Guardian::complaint(Clock::duration elapsed) {
    if (look_)
        if (auto found = look_(elapsed); !found.empty()) return fmt::format("{}: {}", name_, found);
    if (!call_ || (waited_ += elapsed) < limit_) return {};
    const auto suspects = suspects_ ? suspects_() : std::string();
    return fmt::format("{} has waited {:.4g} s in {} for the other processes; {}", name_,
                       std::chrono::duration<double>(limit_).count(), call_,
                       suspects.empty() ? "one of them is stopped, stuck or dead" : suspects);
}

}  // namespace ringlab::processes
