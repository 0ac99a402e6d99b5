#pragma once

#include "experiments/planning/footprint.hpp"
#include "experiments/planning/uncertainty.hpp"
#include "experiments/study/case.hpp"
#include "sim/machine.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A described machine, its memory, and how far predictions on it are trusted.
struct AdvisedMachine {
    std::string name, file;
    sim::Machine machine;
    Capacity capacity;
    Uncertainty uncertainty;
};

/// Where the time of a rank that computes most goes, beside its pairs at the machine's best rate: seconds.
struct Losses {
    double transfer = 0;   ///< nothing computes: transfers and waiting for peers
    double imbalance = 0;  ///< pairs beyond the mean of the ranks
    double tail = 0;       ///< tiles that are not full, processors that run out of them, begin and end of a pass
    double launch = 0;     ///< launches, and the host that issues them

    /// "exposed transfer 31 %, tail 8 %": those of 2 % and more of `seconds`, the largest first.
    std::string reason(double seconds) const;
};

/// What became of one layout, schedule and ring size on a machine.
struct Advised {
    enum class Verdict {
        ranked,      ///< it fits and has a time
        outrun,      ///< its pairs alone take longer than the best: not looked into
        too_large,   ///< it does not fit
        impossible,  ///< sizes do not divide, or the schedule cannot
    };
    enum class Method {
        none,
        events,      ///< all operations of all ranks, by the simulator
        recurrence,  ///< one rank, corrected by the max-plus recurrence over all of them
        one_rank,    ///< some ranks, each as if all others did the same; links that others share are not seen
    };

    const AdvisedMachine* machine = nullptr;
    Case which;
    int rings = 1;           ///< side by side on the GPUs
    std::int64_t batch = 1;  ///< sequences that each ring takes
    Verdict verdict = Verdict::ranked;
    Method method = Method::none;
    double floor_seconds = 0;  ///< no less than its busiest rank's pairs take at the best rate, both passes
    double forward_seconds = 0, backward_seconds = 0;
    std::int64_t memory = 0;  ///< of the fullest rank
    Losses losses;
    std::string reason;

    double seconds() const { return forward_seconds + backward_seconds; }
    std::string name() const;
};

const char* to_string(Advised::Verdict verdict);
const char* to_string(Advised::Method method);

struct Advice {
    std::vector<Advised> all;     ///< ranked ones first, by predicted time; then the others
    std::int64_t operations = 0;  ///< that were looked at or simulated, the measure of the work

    std::vector<const Advised*> ranked() const;
};

/// What advice is looked for: lists that are empty are chosen for the machine and the mask.
struct Question {
    const Config& config;
    const std::vector<AdvisedMachine>& machines;
    /// Called before each candidate: what, how many are done and how many there are.
    std::function<void(const std::string&, std::size_t, std::size_t)> progress = {};
};

/// Lays out every combination that may win, tells what fits, and predicts it: by one rank first, then, in order of
/// that, by the simulator as long as one may still be the best and it takes not too long. Throws Error if the mask
/// cannot be made or no combination is possible.
Advice advise(const Question& question);

}  // namespace ringlab::experiments
