#pragma once

#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

namespace ringlab::experiments {

/// Time and memory that a sweep will take on this computer. Time comes from what an operation takes on a laptop, so it
/// may be off by a factor of three; memory comes from the sizes of what is held at once.
class Forecast {
public:
    explicit Forecast(const Config& config) : config_(config) {}

    /// Throws Error if so many ranks cannot be executed here, or predicted in a time that anyone waits, before they are
    /// laid out.
    void require_ranks_to_execute() const;
    void require_ranks_to_predict() const;

    /// Adds a run that will be executed and judged.
    void add_executed(const Case& setup, const Plan& plan);

    /// Adds a run that will be predicted on `machines` machines, while others are predicted on `threads` threads.
    void add_predicted(const Case& setup, const Plan& plan, std::size_t machines, int threads = 1);

    /// Prints time and memory on stderr, unless the sweep is short. Throws Error, which says what would fit, if memory
    /// does not suffice or the sweep would take too long.
    void announce() const;

    /// Seconds of all runs. On several threads it is at least the longest run.
    double seconds() const { return std::max(seconds_, longest_run_); }

    /// Seconds of the run that was added as number `index`.
    double seconds_of(std::size_t index) const { return seconds_of_[index]; }

    /// Memory of the largest run on this computer, bytes.
    double bytes() const { return bytes_; }

private:
    /// `seconds` by itself, `share` beside others on as many threads.
    void add(const Case& setup, double seconds, double share, double bytes);

    const Config& config_;
    std::string judged_;  // what the reference was last computed for
    bool predicts_tiles_ = false;
    double seconds_ = 0, bytes_ = 0, longest_seconds_ = 0;
    double longest_run_ = 0;  // of those that are predicted
    std::size_t runs_ = 0;
    std::vector<double> seconds_of_;
    Case longest_, largest_;
};

/// Bytes that this process can still allocate on this machine, or in its container.
double free_memory();

}  // namespace ringlab::experiments
