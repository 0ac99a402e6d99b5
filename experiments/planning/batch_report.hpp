#pragma once

#include "experiments/planning/batch_advice.hpp"
#include "experiments/record/run_writer.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// The sharings of each batch as tables, and over several batches the mean times. Each column is explained.
std::string batch_text(const std::vector<BatchAdvice>& batches, const BatchQuestion& question);

/// The advised rings of a batch for people, one a line.
std::string rings_text(const BatchAdvice& advice);

/// The advised rings as a file for training scripts. Begins with assignment_begin; then a line for each ring: its ranks
/// "FIRST-LAST" and the numbers of its documents, counted from 0 over the whole batch file.
std::string assignment_text(const BatchAdvice& advice);

/// One sharing as a run of a record. `batch` counts from 0.
void describe_sharing(RunWriter& run, const BatchAdvice& advice, std::size_t sharing, std::size_t batch,
                      const BatchQuestion& question);

}  // namespace ringlab::experiments
