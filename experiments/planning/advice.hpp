#pragma once

#include "experiments/memory/longest.hpp"
#include "experiments/options/config.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "experiments/record/run_writer.hpp"
#include "sim/report/breakdown.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A described machine, its memory, and how far off predictions on it were.
struct AdvisedMachine : Device {
    Uncertainty uncertainty;
};

/// Ratio of the simulator's time of a candidate to its estimate from one rank. Measured in 1755 cases (causal, full,
/// window:4096,0 and packed documents; 32k to 512k tokens; what candidates() lists on five machines of 4 to 64 GPUs):
/// on each machine nine of ten lay between 0.82 and 1.25, all between 0.65 and 2.7. Rounded outwards. With `planned`,
/// tried since, up to 1.26 on h200_nvswitch_nccl.
struct EstimateError {
    double low = 0.8, high = 1.3;     ///< of nine of ten
    double least = 0.65, most = 2.7;  ///< of all
};
inline constexpr EstimateError estimate_error{};

/// One layout, schedule and ring size on a machine, and what is known of it.
struct Advised {
    enum class Verdict {
        ranked,      ///< it fits, and was simulated
        estimated,   ///< it fits and may be among the first; it was not simulated
        outrun,      ///< it cannot be among the first: its pairs alone, or the estimate from one rank, take too long
        too_large,   ///< it does not fit
        impossible,  ///< sizes do not divide, or the schedule cannot
    };
    enum class Method {
        none,
        events,    ///< all operations of all ranks, by the simulator
        one_rank,  ///< some ranks, each as if all others did the same; links that others share are not seen
    };

    const AdvisedMachine* machine = nullptr;
    Case setup;
    int rings = 1;           ///< side by side on the GPUs
    std::int64_t batch = 1;  ///< sequences that each ring takes
    double density = 1;      ///< of the mask, see density()
    Verdict verdict = Verdict::ranked;
    Method method = Method::none;
    double floor_seconds = 0;  ///< no less than its busiest rank's pairs take at the best rate, both passes
    double forward_seconds = 0, backward_seconds = 0;
    double estimated_seconds = 0;          ///< of both passes, by one rank
    std::int64_t operations = 0;           ///< of both passes, of all ranks of a ring; 0: not counted
    int played_rings = 1;                  ///< that the simulator has side by side
    std::int64_t memory = 0;               ///< of the fullest rank
    std::int64_t attention_memory = 0;     ///< the part of it that one attention takes
    std::optional<sim::Breakdown> causes;  ///< of both passes together: of the first alone, and by `method`
    std::string reason;                    ///< where its time goes, or why it has none or was not simulated

    double seconds() const { return forward_seconds + backward_seconds; }

    /// The margin that nine of ten measured times of such rings keep, see margin(). Nothing if none were measured.
    std::optional<double> margin() const;

    /// Of what those rings were, if none was of this layout or none of this schedule: " of other layouts",
    /// " of other schedules" or, if neither was measured, " of others". Else, and without a margin, empty. All layouts
    /// `planned` count as one.
    std::string margin_is_of() const;
    std::string name() const;
};

const char* to_string(Advised::Verdict verdict);

struct Advice {
    std::vector<Advised> all;  ///< ranked ones first, by predicted time; then estimated ones likewise, and the others
    std::int64_t operations = 0;  ///< that were looked at or simulated, the measure of the work
    /// least_seconds() of both passes of the first ranked one, if its mask packs documents.
    std::optional<double> least_seconds = {};

    std::vector<const Advised*> with(Advised::Verdict verdict) const;
    std::vector<const Advised*> ranked() const { return with(Advised::Verdict::ranked); }
};

/// What advice is asked for. Empty lists are chosen for the machine and the mask.
struct Question {
    const Config& config;
    const std::vector<AdvisedMachine>& machines;
    std::size_t rows = 12;  ///< number of first candidates that are simulated, ranked and explained
    /// Called before each step of a stage: what, how many steps of the stage are done and how many there are.
    std::function<void(const std::string&, std::size_t, std::size_t)> progress = {};
};

/// Lays out all candidates(), finds which fit, and estimates their times from one rank. In that order it simulates all
/// that may be among the first rows, as far as the budget goes, and then variants() of those near the best. The others
/// remain estimates. Throws Error if the mask cannot be made or no combination is possible.
Advice advise(const Question& question);

/// The advice as text: the first ranked candidates, where their time goes, and the estimates apart; how many of each
/// other kind there are, with those that nearly fit; and how far off such predictions were. Each column is explained
/// below its table.
std::string advice_text(const Advice& advice, const Question& question);

/// All of it as JSON: "ranked", "estimated", "does not fit", "outrun" and "impossible", and the machines. Begins with
/// advice_begin. A candidate has the names that describe_advised() gives a run's columns.
std::string advice_json(const Advice& advice, const Question& question);

/// One candidate as a run of a record; `place` is 1 for the best, 0 for those without a place.
void describe_advised(RunWriter& run, const Advised& one, std::int64_t place);

}  // namespace ringlab::experiments
