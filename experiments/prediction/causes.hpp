#pragma once

#include "experiments/console/table.hpp"
#include "experiments/record/record.hpp"
#include "experiments/record/run_writer.hpp"
#include "sim/report/breakdown.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// Adds to a line of a table where the time of a predicted pass goes, in percent of the pass.
void add_cause_cells(Table& table, const sim::Breakdown& found);

/// Names and seconds of the causes, which with "shared" add up to the pass, and if `with_inside` of all else that is
/// known of it.
std::vector<std::pair<std::string, double>> cause_seconds(const sim::Breakdown& found, bool with_inside);

/// The definition of each of these columns, to be printed below a table.
extern const char* const cause_definitions;

/// "compute 71 %, launches 14 %, ... (tail 5 %)": what takes 2 % of the pass or more, the largest first; the causes
/// where it is not known what the ranks do.
std::string causes_in_words(const sim::Breakdown& found);

/// Datasets predicted/... of the pass that `place` chooses.
void describe_causes(RunWriter& run, const std::vector<Dimension>& place, const sim::Breakdown& found);

/// The causes of a predicted pass, if the record knows them.
std::optional<sim::Breakdown> recorded_causes(const Record& record, const std::string& run,
                                              const Record::Labels& labels);

/// A table with the definitions of its columns; "" if it has no lines.
std::string causes_text(const Table& table);

}  // namespace ringlab::experiments
