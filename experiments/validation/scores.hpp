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

/// Predicts every ring of all records that are scored by today's model, and commits a run for each to `scores`, with
/// the error that its record keeps of the model of its day, if any; of a single record with spans. load_scores() reads
/// them again. Returns ring_text() of a single record, else scores_text().
std::string score_all(Record& scores, const std::vector<ScoredRecord>& records);

/// How many pairs of passes of rings that differ only in their layout, and by more than both vary, are ranked right:
/// the one that is predicted to be faster was faster.
struct Ranking {
    int right = 0, all = 0;
};
Ranking ranking(const std::vector<ScoredRing>& rings);

/// A row for each record, machine file and length: their names, rings, errors in % by today's model (mean / 95th
/// percentile / largest), mean errors of the naive guesses, errors that the record keeps.
std::vector<std::vector<std::string>> score_rows(const std::vector<ScoredRing>& rings);

/// A row for each machine file and density: margin() by length in %, the shortest first, with the rings of each.
std::vector<std::vector<std::string>> margin_rows(const std::vector<ScoredRing>& rings);

/// A line for each ring and pass, and the scores of the predictions and of the naive guesses, by transport.
std::string ring_text(const std::vector<ScoredRing>& rings);

/// score_rows() and margin_rows() as tables with what their words mean, how many rings lie within their margins, and
/// what is not scored, and why.
std::string scores_text(const Scores& scores, const std::vector<ScoredRecord>& records);

}  // namespace ringlab::experiments
