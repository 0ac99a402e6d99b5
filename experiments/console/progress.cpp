#include "experiments/console/progress.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <cstdio>

namespace ringlab::experiments {
namespace {

constexpr auto between_lines = std::chrono::seconds(5);
constexpr auto between_bars = std::chrono::seconds(1);

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Progress::Progress(std::size_t runs, bool quiet) : runs_(runs), quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {
    if (!quiet_) watcher_ = std::thread([this] { watch(); });
}

Progress::~Progress() {
    if (quiet_) return;
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    ended_.notify_all();
    watcher_.join();
    if (terminal_) std::fputs("\r\x1b[K", stderr);
}

void Progress::start(const std::string& run, double forecast_seconds) {
    if (quiet_) return;
    const std::lock_guard lock(mutex_);
    constexpr std::size_t longest = 100;  // a packing's name has all of its documents
    run_ = run.size() <= longest ? run : run.substr(0, longest) + "...";
    forecast_seconds_ = forecast_seconds;
    run_begin_ = Clock::now();
    if (terminal_ || done_ == 0 || run_begin_ - last_line_ >= between_lines) show(run_begin_);
}

void Progress::finish() {
    const std::lock_guard lock(mutex_);
    ++done_;
    run_.clear();
}

void Progress::watch() {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, between_bars, [&] { return over_; })) {
        const auto now = Clock::now();
        if (!run_.empty() && (terminal_ || now - last_line_ >= between_lines)) show(now);
    }
}

void Progress::show(Clock::time_point now) {
    last_line_ = now;
    const auto left = done_ == 0 ? std::string()
                                 : fmt::format(", {:.0f} s left", seconds(now - begin_) / static_cast<double>(done_) *
                                                                      static_cast<double>(runs_ - done_));
    auto within = seconds(now - run_begin_) < 1 ? std::string() : fmt::format(": {:.0f} s", seconds(now - run_begin_));
    if (!within.empty() && forecast_seconds_ >= 1) within += fmt::format(" of about {:.0f}", forecast_seconds_);
    if (!terminal_) {
        fmt::print(stderr, "[{}/{}{}] {}{}\n", done_ + 1, runs_, left, run_, within);
        return;
    }
    constexpr std::size_t width = 30;
    const auto filled = runs_ == 0 ? width : done_ * width / runs_;
    fmt::print(stderr, "\r\x1b[K[{:#<{}}{:.<{}}] {}/{}{}  {}{}", "", filled, "", width - filled, done_, runs_, left,
               run_, within);
    std::fflush(stderr);
}

}  // namespace ringlab::experiments
