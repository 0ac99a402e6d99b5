#pragma once

#include "experiments/console/progress.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/predictor.hpp"
#include "experiments/validation/recorded.hpp"
#include "experiments/validation/scored_records.hpp"

namespace ringlab::experiments {

/// What was measured of a pass of a ring, in repeats, and with what rest.
struct MeasuredPass {
    double seconds = 0, spread = 0;  ///< median of the slowest rank, and distance of the quartiles over it
    Repetition repetition;
};
MeasuredPass measured_pass(const RingSamples& samples, layouts::Pass pass);

/// Columns of a pass beside what is predicted for it on a machine: error_PASS_MACHINE and the like.
void describe_errors(RunWriter& run, layouts::Pass pass, const std::string& machine, double measured, double predicted,
                     double overlapped, double serial);

/// Name of the run of one of the record's rings in a record of the scores of all.
std::string scored_name(const ScoredRecord& record, const ThroughputCase& ring);

/// Predicts every ring of a record by today's model, and commits a run for each to `scores`, with the error that the
/// record itself keeps of the model of its day (recorded_error_PASS), if any.
void score_record(Record& scores, const ScoredRecord& record, Progress& progress);

/// A line for each record, transport and size, with today's errors beside those of the naive guesses and those that the
/// record keeps; then what is not scored, and why.
std::string scores_text(const Record& scores, const std::vector<ScoredRecord>& records);

}  // namespace ringlab::experiments
