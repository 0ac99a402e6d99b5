#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace ringlab::experiments {

/// Tells a person on stderr how far the runs are: a line at the start of a run, at most one every few seconds.
class Progress {
public:
    /// `quiet` shows nothing, for processes other than the first.
    Progress(std::size_t runs, bool quiet) : runs_(runs), quiet_(quiet) {}

    /// The run that now begins, and the seconds that it was forecast to take; 0 if not known.
    void start(const std::string& run, double forecast_seconds = 0);
    void finish() { ++done_; }

private:
    using Clock = std::chrono::steady_clock;

    const std::size_t runs_;
    const bool quiet_;
    const Clock::time_point begin_ = Clock::now();
    std::size_t done_ = 0;
    Clock::time_point last_line_;
};

}  // namespace ringlab::experiments
