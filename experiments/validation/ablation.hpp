#pragma once

#include "experiments/record/record.hpp"
#include "experiments/validation/measured_rings.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// Names of terms of the cost model, with `each` replaced by all of them. Throws Error if one is not known.
std::vector<std::string> terms_named(const std::vector<std::string>& names);

/// Predicts both passes of every ring of the records once as they are and once without each of the terms, and commits a
/// run for each term (and for none), transport and length: mean, 95th percentile and largest of the relative errors.
/// What remains is not fitted again, so the loss is an upper bound of what a term is worth. Returns a table of it.
std::string score_without(Record& scores, const std::vector<ScoredRecord>& records,
                          const std::vector<std::string>& terms);

}  // namespace ringlab::experiments
