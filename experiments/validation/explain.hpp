#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/prediction/causes.hpp"
#include "experiments/record/record.hpp"
#include "experiments/validation/measured_rings.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// A pass whose error is split by what the rank that ends last does.
struct ExplainedPass {
    std::string record;  ///< without folder and ending
    ThroughputCase ring;
    layouts::Pass pass = layouts::Pass::forward;
    double measured = 0, predicted = 0;  ///< seconds
    Shares differences = {};             ///< predicted less measured seconds, which add up to the error

    /// The part with the largest difference, without sign.
    const std::string& owner() const;
};

/// Splits the errors of all passes with measured spans. If `explained` is not null, a run for each ring is committed to
/// it. Throws Error if no pass of a record has measured spans.
std::vector<ExplainedPass> explained_passes(const std::vector<ScoredRecord>& records, Record* explained);

/// Does this, and returns tables of it.
std::string explain(Record& explained, const std::vector<ScoredRecord>& records);

}  // namespace ringlab::experiments
