#pragma once

#include "experiments/execution/ring_run.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/judge.hpp"

namespace ringlab::experiments {

// What all experiments write about a run, in one schema.

/// Attributes of the case and its problem; visible pairs by rank and owner; for sequences short enough to draw, the
/// owner of every token and what every row sees.
void describe_case(RunWriter& run, const Case& setup, const Plan& plan);

/// A tensor's deviations from fp64, in the group "judged", by replica, and how much of it was judged.
void describe_verdicts(RunWriter& run, const std::vector<Verdict>& verdicts, Extent extent);

/// Measured repeats of the rings of one case. CPU time of the attends by repeat, replica and rank, makespans, spans of
/// the first ring in the repeat with the median makespan, memory.
void describe_measurements(RunWriter& run, const std::vector<RingRun>& rings);

/// What executed the rings, and how.
void describe_execution(RunWriter& run, const ExecutionConfig& config, const std::vector<RingRun>& rings);

/// Clocks, power and temperature of GPUs over time, in the group "measured/clocks"; nothing if there are no samples.
void describe_clocks(RunWriter& run, std::vector<gpu::ClockSample> samples);

/// A finished run of a record, as tables read it.
struct FinishedRun {
    const Record& record;
    std::string name;

    /// Of the table of runs; NaN where the run has none.
    double number(const std::string& column) const;
};

/// Number of visible pairs that each rank computes.
std::vector<double> pairs_by_rank(const layouts::Schedule& schedule);

/// FLOP of the visible pairs of all ranks and heads.
double pass_flop(const layouts::Schedule& schedule);

}  // namespace ringlab::experiments
