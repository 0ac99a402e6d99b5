#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/record/record.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// Summary of relative errors, without their signs.
struct Score {
    double mean = 0, p95 = 0, most = 0;
};
Score score(std::vector<double> errors);

/// A line for each ring and pass of the record, and the scores of a machine's predictions and of the naive guesses.
std::string score_text(const Record& record, const std::vector<ThroughputCase>& rings, const std::string& machine);

}  // namespace ringlab::experiments
