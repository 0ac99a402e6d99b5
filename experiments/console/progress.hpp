#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace ringlab::experiments {

/// Tells a person on stderr how far the runs are, within a long run too: a bar that is redrawn on a terminal, elsewhere
/// a line every few seconds.
class Progress {
public:
    /// `quiet` shows nothing, for processes other than the first.
    Progress(std::size_t runs, bool quiet);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// The run that now begins, and the seconds that it was forecast to take; 0 if not known.
    void start(const std::string& run, double forecast_seconds = 0);
    void finish();

private:
    using Clock = std::chrono::steady_clock;

    void watch();
    void show(Clock::time_point now);

    const std::size_t runs_;
    const bool quiet_, terminal_;
    const Clock::time_point begin_ = Clock::now();

    std::mutex mutex_;  // guards the members below
    std::condition_variable ended_;
    bool over_ = false;
    std::size_t done_ = 0;
    std::string run_;
    double forecast_seconds_ = 0;
    Clock::time_point run_begin_, last_line_;
    std::thread watcher_;
};

}  // namespace ringlab::experiments
