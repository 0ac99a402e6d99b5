#pragma once

#include "experiments/prediction/uncertainty.hpp"
#include "experiments/validation/measured_rings.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// Summary of relative errors, without their signs.
struct Score {
    double mean = 0, p95 = 0, most = 0;
};
Score score(std::vector<double> errors);

/// Columns of what is predicted for a pass and how far that is from what was measured, in seconds: error_ENDING and the
/// like.
void describe_errors(RunWriter& run, const std::string& ending, double measured, double predicted, double overlapped,
                     double serial);

/// A line for each ring and pass of the record, and the scores of a machine's predictions and of the naive guesses.
std::string score_text(const Record& record, const std::vector<ThroughputCase>& rings, const std::string& machine);

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
