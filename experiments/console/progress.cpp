#include "experiments/console/progress.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace ringlab::experiments {

void Progress::start(const std::string& run, double forecast_seconds) {
    constexpr auto between_lines = std::chrono::seconds(5);
    constexpr std::size_t longest = 100;  // a packing's name has all of its documents
    const auto now = Clock::now();
    if (quiet_ || (done_ > 0 && forecast_seconds < 5 && now - last_line_ < between_lines)) return;
    last_line_ = now;
    const auto seconds = std::chrono::duration<double>(now - begin_).count();
    const auto left =
        done_ == 0
            ? std::string()
            : fmt::format(", {:.0f} s left", seconds / static_cast<double>(done_) * static_cast<double>(runs_ - done_));
    fmt::print(stderr, "[{}/{}{}] {}{}{}\n", done_ + 1, runs_, left, run.substr(0, longest),
               run.size() > longest ? "..." : "",
               forecast_seconds < 1 ? "" : fmt::format(": about {:.0f} s", forecast_seconds));
}

}  // namespace ringlab::experiments
