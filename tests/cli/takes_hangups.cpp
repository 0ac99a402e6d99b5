#include <csignal>

#include <unistd.h>

// Loaded into a program, it takes SIGHUP before main(), whoever had it.

namespace {

void say(int) {
    constexpr char line[] = "a library took the signal\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line, sizeof line - 1);
}

[[gnu::constructor]] void take_hangups() { std::signal(SIGHUP, say); }

}  // namespace
