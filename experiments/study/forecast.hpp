#pragma once

#include "experiments/config/case.hpp"
#include "experiments/config/config.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

namespace ringlab::experiments {

/// What a sweep will take of this computer, told before it begins: time from a rate that is measured in a fraction of a
/// second on a small case of the same kind, memory from the sizes of what is held at once. Rough, within a factor of
/// two or so where ranks have processors enough.
class Forecast {
public:
    explicit Forecast(const Config& config) : config_(config) {}

    /// Throws Error if so many ranks cannot be executed here, or predicted in a time that anyone waits, before they are
    /// laid out.
    void require_ranks_to_execute() const;
    void require_ranks_to_predict() const;

    /// Another run that will be executed and judged, or as many of its kind.
    void add_executed(const Case& which, const Plan& plan, std::size_t count = 1);

    /// Another run that will be predicted on `machines` machines, beside others on `threads` threads, or as many of its
    /// kind.
    void add_predicted(const Case& which, const Plan& plan, std::size_t machines, int threads = 1,
                       std::size_t count = 1);

    /// Tells a person on stderr, if it is more than a moment. Throws Error, which says what would fit, if memory does
    /// not suffice or no one would wait so long, unless the configuration says --force.
    void announce() const;

    /// Of all runs: on several threads, no less than the longest.
    double seconds() const { return std::max(seconds_, longest_run_); }

    /// Of the run, or runs of one kind, added as number `index`.
    double seconds_of(std::size_t index) const { return seconds_of_[index]; }

    /// Of the largest run, on this computer.
    double bytes() const { return bytes_; }

private:
    /// Seconds for a unit of work.
    struct Rates {
        double pair = 0;         ///< a visible pair of one head, both passes, on one processor
        double judged_pair = 0;  ///< the same for the reference
        double rank = 0;         ///< a rank's thread and buffers
        double rank_step = 0;    ///< of one rank: its operations and messages, whatever their size
    };

    Rates measured_rates(const layouts::Problem& problem);
    /// `seconds` of all `count` of a kind by themselves, `share` beside others on as many threads, `bytes` of one.
    void add(const Case& which, std::size_t count, double seconds, double share, double bytes, double rank_bytes);

    const Config& config_;
    std::map<std::int64_t, Rates> rates_;  // by tokens of the small case
    std::string judged_;                   // what the reference was last computed for
    bool predicts_tiles_ = false;
    double seconds_ = 0, bytes_ = 0, rank_bytes_ = 0, longest_seconds_ = 0;
    double longest_run_ = 0;  // of those that are predicted
    std::size_t runs_ = 0;
    std::vector<double> seconds_of_;
    Case longest_, largest_;
};

/// Bytes that this process can still have: of the machine, or of the container that it runs in.
double free_memory();

}  // namespace ringlab::experiments
