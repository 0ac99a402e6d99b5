#pragma once

#include "layouts/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ringlab::sim {

/// How devices differ from each other and runs from run to run. All of it is drawn from (seed, repeat) and from
/// what it is about alone, so the same draws meet whoever plays a schedule, in whatever order.
struct Jitter {
    std::uint64_t seed = 1;
    int repeat = 0;  ///< another draw of everything

    // Stragglers, the same in both passes of a repeat; any ranks are as likely as others.
    int slow_gpus = 0;            ///< so many ranks
    double slow_gpu_factor = 1;   ///< compute for so many times as long
    int slow_links = 0;           ///< what so many ranks send, or others fetch from them,
    double slow_link_factor = 1;  ///< goes over a link or port of the rate divided by this

    // Standard deviation of the logarithm of what each operation's duration is multiplied by: normal, with median 1.
    double compute_noise = 0;
    double transfer_noise = 0;

    double start_skew_seconds = 0;  ///< each rank starts up to so much later, drawn evenly
};

/// What a Jitter comes to for the ranks and operations of one pass.
class Draws {
public:
    /// Throws Error if a figure is out of range or there are not so many ranks.
    Draws(const Jitter& jitter, int ranks, layouts::Pass pass);

    double gpu_factor(int rank) const { return is_in(slow_gpus_, rank) ? jitter_.slow_gpu_factor : 1; }
    double link_factor(int rank) const { return is_in(slow_links_, rank) ? jitter_.slow_link_factor : 1; }
    const std::vector<int>& slow_links() const { return slow_links_; }

    /// Of an operation of a rank, by its index; a message's is that of who sends or fetches it.
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
