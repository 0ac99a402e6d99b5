#include "experiments/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>
#include <mutex>

namespace ringlab::experiments {
namespace {

// A handler may read these at any moment, so they are atomic and what they point to stays as it is.
std::atomic<const char*> line_to_say{nullptr};
std::array<std::atomic<const char*>, 16> files_to_remove{};

std::atomic<pid_t> owner{0};

void end(int signal_number) {
    if (::getpid() != owner.load()) ::_exit(128 + signal_number);  // a child that reads a file: its parent speaks
    for (const auto& file : files_to_remove)
        if (const char* path = file.load()) ::unlink(path);
    if (const char* line = line_to_say.load()) {
        const auto written = ::write(STDERR_FILENO, line, std::strlen(line));
        static_cast<void>(written);  // nobody is left to tell
    }
    ::_exit(128 + signal_number);
}

}  // namespace

void end_on_signals() {
    owner = ::getpid();
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction before {};
        if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
        struct sigaction action {};
        action.sa_handler = end;
        ::sigfillset(&action.sa_mask);
        ::sigaction(number, &action, nullptr);
    }
}

void say_when_interrupted(const std::string& line) {
    static std::mutex mutex;
    static std::deque<std::string> lines;  // the handler may still be reading an earlier one
    const std::lock_guard lock(mutex);
    // Behind a progress bar that is being drawn the line stands on one of its own.
    lines.push_back((::isatty(STDERR_FILENO) ? "\r\x1b[K" : "") + line + "\n");
    line_to_say = lines.back().c_str();
}

void RemovedWhenInterrupted::watch(const std::filesystem::path& path) {
    path_ = path.string();
    for (auto& place : files_to_remove) {
        const char* none = nullptr;
        if (!place.compare_exchange_strong(none, path_.c_str())) continue;
        place_ = &place;
        return;
    }
}

RemovedWhenInterrupted::~RemovedWhenInterrupted() {
    if (place_) *place_ = nullptr;
}

}  // namespace ringlab::experiments
