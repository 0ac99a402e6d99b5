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

/// Their names and seconds: those that add up, and if `with_inside` those that lie within them.
std::vector<std::pair<std::string, double>> cause_seconds(const sim::Breakdown& found, bool with_inside);

/// What each of these columns means, for below such a table.
extern const char* const cause_definitions;

/// "attends 71 %, shared 14 %, ...": lines of 2 % and more of the pass, the largest first, with what lies within them.
std::string causes_in_words(const sim::Breakdown& found);

/// Datasets predicted/... of the pass that `place` chooses.
void describe_causes(RunWriter& run, const std::vector<Dimension>& place, const sim::Breakdown& found);

/// Runs and passes of a record of which it is known where their time goes.
class CauseTable {
public:
    /// `header` of the columns in front, which say what pass it is.
    explicit CauseTable(std::vector<std::string> header);

    /// Nothing, where the record does not know.
    void add(std::vector<std::string> cells, const Record& record, const std::string& run,
             const Record::Labels& labels);

    /// With the definitions; "" if it has no rows.
    std::string text() const;

private:
    Table table_;
    bool empty_ = true;
};

}  // namespace ringlab::experiments
