#pragma once

#include "experiments/console/progress.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/prediction/scored_rings.hpp"
#include "experiments/record/record.hpp"
#include "experiments/validation/recorded.hpp"
#include "experiments/validation/scored_records.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// What was measured of a pass of a ring, in repeats, and with what rest.
struct MeasuredPass {
    double seconds = 0, spread = 0;  ///< median of the slowest rank, and distance of the quartiles over it
    Repetition repetition;
};
MeasuredPass measured_pass(const RingSamples& samples, layouts::Pass pass);

/// Columns of what is predicted for a pass and how far that is from what was measured, in seconds: error_ENDING and the
/// like.
void describe_errors(RunWriter& run, const std::string& ending, double measured, double predicted, double overlapped,
                     double serial);

/// Name of the run of one of the record's rings in a record of the scores of all.
std::string scored_name(const ScoredRecord& record, const ThroughputCase& ring);

/// Columns of a record of scores that say which ring of which record a run is about.
void describe_scored_ring(RunWriter& run, const std::string& record, const ThroughputCase& ring);

/// Predicts every ring of a record by today's model, and commits a run for each to `scores`, with the error that the
/// record itself keeps of the model of its day, if any. load_scores() reads them again.
void score_record(Record& scores, const ScoredRecord& record, Progress& progress);

/// Scores all records that are scored, and returns scores_text().
std::string score_all(Record& scores, const std::vector<ScoredRecord>& records, Progress& progress);

/// A row for each record, machine file and length: their names, rings, errors in % by today's model (mean / 95th
/// percentile / largest), mean errors of the naive guesses, errors that the record keeps.
std::vector<std::vector<std::string>> score_rows(const std::vector<ScoredRing>& rings);

/// A row for each machine file and density: margin() by length in %, the shortest first, with the rings of each.
std::vector<std::vector<std::string>> margin_rows(const std::vector<ScoredRing>& rings);

/// Both as tables with what their words mean, how many rings lie within their margins, and what is not scored, and why.
std::string scores_text(const Scores& scores, const std::vector<ScoredRecord>& records);

}  // namespace ringlab::experiments
