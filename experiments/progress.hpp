#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace ringlab::experiments {

/// Tells a person on stderr how far the runs are: a bar that is redrawn on a terminal, elsewhere a line
/// every few seconds.
class Progress {
public:
    /// `quiet` shows nothing, for processes other than the first.
    Progress(std::size_t runs, bool quiet);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// The run that now begins.
    void start(const std::string& run);
    void finish() { ++done_; }

private:
    std::size_t runs_;
    std::size_t done_ = 0;
    bool quiet_;
    bool terminal_;
    std::chrono::steady_clock::time_point last_line_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace ringlab::experiments
