#include "experiments/console/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>

namespace ringlab::experiments {
namespace {

// A handler may read these at any moment, so they are atomic and what they point to stays as it is.
std::atomic<const char*> line_to_say{nullptr};
std::atomic<int> uninterrupted{0}, come_meanwhile{0};

void end(int signal_number) {
    if (uninterrupted.load() > 0) {
        come_meanwhile = signal_number;
        return;
    }
    if (const char* line = line_to_say.load()) {
        const auto written = ::write(STDERR_FILENO, line, std::strlen(line));
        static_cast<void>(written);  // nobody is left to tell
    }
    ::_exit(128 + signal_number);
}

struct Ending {
    int number;
    bool ignored_by_caller;
};
std::array<Ending, 3> endings{{{SIGINT, false}, {SIGTERM, false}, {SIGHUP, false}}};

// By main() a library may have put a handler of its own in the place of what the caller had set: UCX, below Open MPI 5,
// takes SIGHUP for its traces. What .preinit_array names runs before the constructors of all libraries.
void note_what_is_ignored(int, char**, char**) {
    for (auto& [number, ignored] : endings) {
        struct sigaction given {};
        ignored = ::sigaction(number, nullptr, &given) == 0 && given.sa_handler == SIG_IGN;
    }
}
[[gnu::section(".preinit_array"), gnu::used]] void (*note_first)(int, char**, char**) = note_what_is_ignored;

void take(const Ending& ending) {
    struct sigaction action {};
    action.sa_handler = ending.ignored_by_caller ? SIG_IGN : end;
    ::sigfillset(&action.sa_mask);
    ::sigaction(ending.number, &action, nullptr);
}

}  // namespace

void end_on_signals() {
    for (const auto& ending : endings) take(ending);
}

void end_on_hangup() {
    for (const auto& ending : endings)
        if (ending.number == SIGHUP) take(ending);
}

void say_when_interrupted(const std::string& line) {
    static std::mutex mutex;
    static std::deque<std::string> lines;  // the handler may still be reading an earlier one
    const std::lock_guard lock(mutex);
    // Behind a progress bar that is being drawn the line stands on one of its own.
    lines.push_back((::isatty(STDERR_FILENO) ? "\r\x1b[K" : "") + line + "\n");
    line_to_say = lines.back().c_str();
}

Uninterrupted::Uninterrupted() { ++uninterrupted; }

Uninterrupted::~Uninterrupted() {
    if (--uninterrupted == 0 && come_meanwhile.load() != 0) end(come_meanwhile.load());
}

}  // namespace ringlab::experiments
