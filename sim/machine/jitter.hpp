#pragma once

#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ringlab::sim {

/// How GPUs and links differ from each other, and runs from run to run. Every number is drawn from (seed, repeat) and
/// from what it describes. So all engines draw the same numbers, in any order of events.
struct Jitter {
    std::uint64_t seed = 1;
    int repeat = 0;  ///< number of the repeat: another one draws everything anew

    // Stragglers, the same in both passes of a repeat. All ranks are equally likely.
    int slow_gpus = 0;            ///< number of ranks
    double slow_gpu_factor = 1;   ///< whose computing takes so many times as long
    int slow_links = 0;           ///< number of ranks
    double slow_link_factor = 1;  ///< whose outgoing link, or port, has its rate divided by this

    // Standard deviation of the logarithm of a factor on each operation's duration. The factor is lognormal with median
    // 1.
    double compute_noise = 0;
    double transfer_noise = 0;

    double start_skew_seconds = 0;  ///< largest delay of a rank's start; delays are uniform
};

/// The numbers drawn from a Jitter for the ranks and operations of one pass.
class Draws {
public:
    /// Throws Error if a figure is out of range or there are fewer ranks than slow ones.
    Draws(const Jitter& jitter, int ranks, layouts::Pass pass);

    double gpu_factor(int rank) const { return is_in(slow_gpus_, rank) ? jitter_.slow_gpu_factor : 1; }
    double link_factor(int rank) const { return is_in(slow_links_, rank) ? jitter_.slow_link_factor : 1; }
    const std::vector<int>& slow_links() const { return slow_links_; }

    /// Factor of an operation of a rank, by index. A message has the factor of the rank that sends or fetches it.
    double compute_factor(int rank, layouts::OpIndex op) const { return noise(jitter_.compute_noise, rank, op); }
    double transfer_factor(int rank, layouts::OpIndex op) const { return noise(jitter_.transfer_noise, rank, op); }

    double start_seconds(int rank) const;

private:
    static bool is_in(const std::vector<int>& ranks, int rank) {
        return !ranks.empty() && std::binary_search(ranks.begin(), ranks.end(), rank);
    }
    double noise(double deviation, int rank, layouts::OpIndex op) const {
        return deviation == 0 ? 1 : drawn_noise(deviation, rank, op);
    }
    double drawn_noise(double deviation, int rank, layouts::OpIndex op) const;

    Jitter jitter_;
    std::uint64_t pass_;
    std::vector<int> slow_gpus_, slow_links_;  // sorted
};

}  // namespace ringlab::sim
