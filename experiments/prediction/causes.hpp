#pragma once

#include "experiments/console/table.hpp"
#include "experiments/record/record.hpp"
#include "experiments/record/run_writer.hpp"
#include "sim/report/breakdown.hpp"

#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// Where the time of predicted passes goes, as tables show it: in percent of the pass.
std::vector<std::string> cause_header();
std::vector<std::string> cause_cells(const sim::Breakdown& found);

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

/// A table of the causes of runs and passes, as far as a record knows them.
class CauseTable {
public:
    /// `header` of the columns in front, which say what pass it is.
    explicit CauseTable(std::vector<std::string> header);

    /// Does nothing if the record does not know the causes.
    void add(std::vector<std::string> cells, const Record& record, const std::string& run,
             const Record::Labels& labels);

    /// The table with the definitions of its columns; "" if it has no rows.
    std::string text() const;

private:
    Table table_;
    bool empty_ = true;
};

}  // namespace ringlab::experiments
