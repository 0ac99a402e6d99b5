#pragma once

#include "experiments/execution/backend.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "experiments/options/source.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/forecast.hpp"
#include "experiments/study/judge.hpp"

#include <functional>
#include <memory>

namespace ringlab::experiments {

/// Everything that an experiment has for one case.
struct Trial {
    const Case& setup;
    const Plan& plan;
    const Policy& policy;
    const std::vector<InputData>& inputs;  ///< one per replica
    const ExecutionConfig& execution;
    Backend& backend;
    RunWriter run = {};               ///< what goes to the record, on the root process
    std::vector<RingRun> rings = {};  ///< by replica, see measure()

    /// Executes both passes `count` times and keeps what came of it in `rings`. Returns whether this is the root
    /// process, which alone has results.
    bool measure(int count);

    /// The verdict on each replica of the last repeat.
    std::vector<Verdict> judge(Judge& judge) const;

    /// Executes both passes `count` times and judges each. The record gets the largest error of each replica, result
    /// and measure. Does nothing on processes other than the root.
    std::vector<Verdict> judge_repeats(Judge& judge, int count);

    /// Largest errors that pass, for each replica.
    std::vector<Tolerance> tolerances(Judge& judge) const;
};

/// The loop that measuring experiments share: every case of the sweep that the record lacks, one after another, each
/// committed as soon as it is done.
class Study {
public:
    /// Lays out every case once before anything runs, so that one that cannot work is refused at the start.
    /// `add_provenance` may add what the experiment itself read.
    Study(const Experiment& experiment, const Config& config, int argc, const char* const* argv,
          const std::function<void(Provenance&)>& add_provenance = {});

    /// Calls `one` for each case that is not in the record yet, and commits it; with --save-tensors its tensors are
    /// written. Then the record is finished.
    void run(const std::function<void(Trial&)>& one);

    const std::vector<Case>& cases() const { return cases_; }

    /// The record; null on processes other than the root.
    const Record* record() const { return record_.get(); }

private:
    Plan plan_of(const Case& setup) const;

    const Config& config_;
    Source source_;
    std::vector<Case> cases_;
    FileGuard files_;
    Provenance provenance_;
    std::unique_ptr<Record> record_;
    Forecast forecast_;
};

/// The record of an experiment, where and as the configuration asks for it.
std::unique_ptr<Record> make_record(const Experiment& experiment, const Config& config, Provenance provenance);

/// What can be known of every run, with the seed and what the backend that executes it knows.
Provenance provenance_of(const Config& config, const Backend& backend, int argc, const char* const* argv);

/// The line that is printed when a sweep is interrupted after so many of its runs.
std::string interrupted_text(const Record& record, std::size_t done, std::size_t runs);

/// An error as tables show it.
std::string format_error(double error);

}  // namespace ringlab::experiments
