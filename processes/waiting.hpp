#pragma once

#include <algorithm>
#include <chrono>

namespace ringlab::processes {

using Clock = std::chrono::steady_clock;

/// How long something has been waited for. Whoever waits looks again and again; if a second or more lies between two
/// looks, this process was stopped itself (Ctrl-Z, a machine that slept): a second of it counts, as what is waited for
/// could perhaps not go on meanwhile.
class Waiting {
public:
    static constexpr Clock::duration longest_step = std::chrono::seconds(1);

    /// What counts since the beginning or the last restart().
    Clock::duration so_far() {
        const auto step = std::min(Clock::now() - last_, longest_step);
        waited_ += step;
        return skip();
    }

    /// The same, but the time since the last look does not count.
    Clock::duration skip() {
        last_ = Clock::now();
        return waited_;
    }

    void restart() { *this = {}; }

private:
    Clock::time_point last_ = Clock::now();
    Clock::duration waited_{};
};

}  // namespace ringlab::processes
