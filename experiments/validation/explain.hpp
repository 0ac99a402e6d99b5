#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/record/record.hpp"
#include "experiments/validation/measured_rings.hpp"
#include "sim/report/replay.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A ring whose error is split among the parts of the cost model.
struct ExplainedRing {
    std::string record;  ///< without folder and ending
    ThroughputCase ring;
    std::array<std::optional<sim::Attribution>, 2> passes{};  ///< forward, backward; nothing without measured spans
};

/// Replays both passes of every ring of a record with what was measured (see sim::Replay), and splits their errors.
/// Rings of the same record help each other. Those that power does not limit tell what attends cost at the clock of
/// the calibration, for rings of the same mask, and how long passes take behind their last span. What then remains of
/// the others' attends, and of the difference between their traced pass and the median one, is the clock. If a record
/// has no such ring of a mask, attends own the clock's error too.
///
/// Throws Error if no pass of the record has measured spans.
std::vector<ExplainedRing> explained_rings(const ScoredRecord& record, Progress& progress);

/// Does this for all records, and commits a run for each ring. Returns tables of it.
std::string explain(Record& explained, const std::vector<ScoredRecord>& records, Progress& progress);

}  // namespace ringlab::experiments
