#pragma once

#include "experiments/execution/backend.hpp"
#include "experiments/options/case.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/judge.hpp"

namespace ringlab::experiments {

// What all experiments write about a run, in one schema.

/// Attributes of the case and its problem; visible pairs by rank and owner; for sequences short enough to draw, the
/// owner of every token and what every row sees.
void describe_case(RunWriter& run, const Case& which, const Plan& plan);

/// A tensor's deviations from fp64, in the group "judged", by replica, and how much of it was judged.
void describe_verdicts(RunWriter& run, const std::vector<Verdict>& verdicts, Extent extent);

/// Measured repeats of one case: `repeats[i][replica]`. CPU time of the attends by repeat, replica and rank, makespans,
/// spans of replica 0 in the repeat with the median makespan, memory.
void describe_measurements(RunWriter& run, const std::vector<std::vector<Measurement>>& repeats);

/// Number of visible pairs that each rank computes.
std::vector<double> cells_by_rank(const layouts::Schedule& schedule);

/// Seconds that each rank spends in attends.
std::vector<double> attend_seconds(const layouts::Timeline& timeline);

/// FLOP of the visible pairs of all ranks and heads.
double pass_flop(const layouts::Schedule& schedule);

/// The busiest rank's seconds divided by the mean. NaN if no rank has any, as on systems whose clock of a thread's
/// processor time is too coarse.
double balance_of(const std::vector<double>& busy_seconds);

/// The median over repeats of the slowest rank's time in the pass, over all replicas.
double median_pass_seconds(const std::vector<std::vector<Measurement>>& repeats, layouts::Pass pass);

/// Per rank the median over repeats of the attends' busy seconds, of replica 0.
std::vector<double> median_attend_seconds(const std::vector<std::vector<Measurement>>& repeats, layouts::Pass pass);

}  // namespace ringlab::experiments
