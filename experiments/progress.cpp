#include "experiments/progress.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <cstdio>

namespace ringlab::experiments {

Progress::Progress(std::size_t runs, bool quiet) : runs_(runs), quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
    if (terminal_ && !quiet_) std::fputs("\r\x1b[K", stderr);
}

void Progress::start(const std::string& run) {
    if (quiet_) return;
    const auto now = std::chrono::steady_clock::now();
    constexpr auto between_lines = std::chrono::seconds(5);
    if (!terminal_ && done_ > 0 && now - last_line_ < between_lines) return;
    last_line_ = now;
    const std::chrono::duration<double> elapsed = now - begin_;
    const auto left = done_ == 0 ? std::string()
                                 : fmt::format(", {:.0f} s left", elapsed.count() / static_cast<double>(done_) *
                                                                      static_cast<double>(runs_ - done_));
    if (!terminal_) {
        fmt::print(stderr, "[{}/{}{}] {}\n", done_ + 1, runs_, left, run);
        return;
    }
    constexpr std::size_t width = 30;
    const auto filled = runs_ == 0 ? width : done_ * width / runs_;
    fmt::print(stderr, "\r\x1b[K[{:#<{}}{:.<{}}] {}/{}{}  {}", "", filled, "", width - filled, done_, runs_, left, run);
    std::fflush(stderr);
}

}  // namespace ringlab::experiments
