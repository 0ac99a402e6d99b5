#pragma once

#include "experiments/planning/advice.hpp"
#include "experiments/record/run_writer.hpp"

#include <string>

namespace ringlab::experiments {

/// The advice as text: the first ranked candidates, where their time goes, and the estimates apart; how many of each
/// other kind there are, with those that nearly fit; and how far off such predictions were. Each column is explained
/// below its table.
std::string advice_text(const Advice& advice, const Question& question);

/// All of it as JSON: "ranked", "estimated", "does not fit", "outrun" and "impossible", and the machines. Begins with
/// advice_begin.
std::string advice_json(const Advice& advice, const Question& question);

/// One candidate as a run of a record; `place` is 1 for the best, 0 for those without a place.
void describe_advised(RunWriter& run, const Advised& one, const layouts::Problem& problem, std::int64_t place);

}  // namespace ringlab::experiments
