#pragma once

#include <algorithm>
#include <chrono>

namespace ringlab::processes {

using Clock = std::chrono::steady_clock;

/// Measures how long this process has waited. A loop that waits calls so_far() again and again. If more than a second
/// lies between two calls, this process itself was stopped (Ctrl-Z, or a machine that slept), and what it waits for may
/// have been stopped as well. Of such a pause only one second counts.
class Waiting {
public:
    static constexpr Clock::duration longest_step = std::chrono::seconds(1);

    /// The time that counts, since the object was made or since the last restart().
    Clock::duration so_far() {
        const auto step = std::min(Clock::now() - last_, longest_step);
        waited_ += step;
        return skip();
    }

    /// The same, but the time since the last call does not count.
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
