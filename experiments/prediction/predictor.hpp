#pragma once

#include "experiments/execution/ring_run.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "experiments/prediction/machines.hpp"
#include "experiments/record/record.hpp"
#include "sim/play/simulate.hpp"

#include <array>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// How a measured pass was repeated, in seconds.
struct Repetition {
    double period = 0;   ///< from a pass's start to that of the next; 0: not known, no pause then
    double seconds = 0;  ///< of the pass
    /// For a backward pass: time of the forward pass that runs before each of its repeats, because a backward pass
    /// overwrites what it reads. 0 for a forward pass.
    double forward_before = 0;
};

/// Predicts a pass at the clock that it has when it is repeated in this way.
inline void repeat(sim::SimOptions& options, const Repetition& passes) {
    options.clock = sim::Clock::sustained;
    options.pause_seconds = std::max(0.0, passes.period - passes.seconds);
    // The forward pass was timed by itself, so its time differs a little from that in the pause. A pause shorter than
    // half of it cannot hold one.
    const bool is_there = options.pause_seconds > passes.forward_before / 2;
    options.pause_busy_seconds = is_there ? std::min(options.pause_seconds, passes.forward_before) : 0;
}

/// The machines that the configuration names, and what is predicted on them.
class Predictor {
public:
    explicit Predictor(const Config& config);

    /// Names of the machine files, as in the record.
    const std::vector<std::string>& machines() const { return names_; }

    const std::vector<DescribedMachine>& descriptions() const { return machines_; }

    /// With which passes are simulated on them.
    const sim::SimOptions& options() const { return options_; }

    /// Predicts also what only an experiment without measurements can choose: rings side by side, and disturbances, in
    /// repeats on up to `threads` threads.
    void predict_as_configured(int threads);

    /// Paths, digests and full texts of the machine files.
    void add_provenance(Provenance& provenance) const;

    /// Predicts both passes of the plan on every machine and writes them to the run: datasets predicted/... by machine
    /// and pass, columns balance_predicted_PASS_MACHINE and likewise compute and seconds, timelines. Returns the
    /// figures of the columns. Throws Error if the ranks do not fit on a machine.
    struct Figures {
        std::string machine;
        layouts::Pass pass;
        double seconds;
        double balance, compute, naive_overlapped, naive_serial;
    };
    std::vector<Figures> predict(RunWriter& run, const std::string& run_name, const Plan& plan);

    /// A measured timeline for the trace, to stand beside the predicted ones.
    void keep_measured(const std::string& run_name, const layouts::Schedule& schedule,
                       const layouts::Timeline& timeline);

    /// Writes the trace that --trace asks for, if any.
    void write_trace() const;

private:
    struct Kept {
        std::string name;
        layouts::Timeline timeline;
        std::vector<layouts::Interval> host_issue;
        std::vector<std::string> lane_names;
    };

    Figures predict(RunWriter& run, const std::string& run_name, const layouts::Schedule& schedule,
                    std::size_t machine);

    /// Keeps the timelines of the first run that asks, if there is to be a trace.
    bool traces(const std::string& run_name);
    void predict_disturbed(RunWriter& run, const std::string& run_name, const layouts::Schedule& schedule,
                           const DescribedMachine& on, sim::SimOptions options);
    void keep(const std::string& what, const std::string& run_name, const layouts::Schedule& schedule,
              layouts::Timeline timeline, std::vector<layouts::Interval> host_issue);

    const Config& config_;
    sim::SimOptions options_;
    bool as_configured_ = false;
    int threads_ = 1;
    std::vector<DescribedMachine> machines_;
    std::vector<std::string> names_;
    std::string traced_run_;  // the first; empty: none yet
    std::vector<Kept> kept_;
};

/// Percentiles of disturbed times that tables give.
inline constexpr int disturbed_percents[] = {5, 50, 95, 99};

/// Adds to the run, for each figure with a measured counterpart, a column with the error of prediction.
void describe_prediction_errors(RunWriter& run, const std::vector<Predictor::Figures>& predicted,
                                const std::vector<RingRun>& rings);

/// The labels that choose a machine's and a pass's numbers in the datasets predicted/....
Record::Labels prediction_labels(const std::string& machine, layouts::Pass pass);

/// Whether the mask packs documents, so that a layout can be better or worse than what is usual.
bool packs_documents(const std::string& mask);

/// Seconds of each pass below which no layout of the packing comes: its work, evenly shared by the ranks, if no
/// document is cut and messages take no time. Simulates contiguous shards under `seen` without links.
std::array<double, 2> least_seconds(Case setup, const layouts::Problem& problem, const sim::Machine& machine,
                                    sim::SimOptions options);

}  // namespace ringlab::experiments
