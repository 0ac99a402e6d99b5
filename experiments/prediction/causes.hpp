#pragma once

#include "experiments/console/table.hpp"
#include "experiments/record/record.hpp"
#include "sim/report/breakdown.hpp"

#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// Seconds of a pass by what they go to.
using Shares = std::vector<std::pair<std::string, double>>;

/// What a rank does in a pass of this length, which adds up to the pass: "compute", "launches" (the rest),
/// "exposed transfer" and "waiting for peers".
Shares shares_of(const layouts::TimeOfRank& time, layouts::Picoseconds pass);

/// All that is known of where a predicted pass goes: what the rank that ends last does, which adds up to the pass and
/// is 0 where its timeline is not known; parts of its compute; what the pass would be shorter by without each cause,
/// which with "shared" adds up to the pass too.
Shares shares_of(const sim::Breakdown& found);

/// The definition of each of these, to be printed below a table. "shared" tells a person nothing.
extern const char* const cause_definitions;

/// Adds a cell for each share to a line of a table, in percent of `whole`.
void add_cells(Table& table, const Shares& shares, double whole, const char* format);

/// The columns of tables with cause_definitions.
void add_cause_cells(Table& table, const Shares& shares, double pass_seconds);

/// "compute 71 %, launches 14 %, ... (tail 5 %)": what takes 2 % of the pass or more, the largest first; the causes
/// where it is not known what the ranks do.
std::string causes_in_words(const sim::Breakdown& found);

/// The dataset predicted/time_by_cause of the pass that `place` chooses.
void describe_causes(RunWriter& run, const std::vector<Dimension>& place, const sim::Breakdown& found);

/// The same of a finished run; empty if the record does not know.
Shares recorded_causes(const Record& record, const std::string& run, const Record::Labels& labels);

/// A table with the definitions of its columns; "" if it has no lines.
std::string causes_text(const Table& table);

}  // namespace ringlab::experiments
