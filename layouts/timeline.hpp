#pragma once

#include "layouts/schedule.hpp"
#include "layouts/units.hpp"

#include <vector>

namespace ringlab::layouts {

/// One operation as it ran, or as it is predicted to run. Interpreters produce these; who made them does not show.
struct Span {
    int rank = 0;
    OpIndex op = 0;  ///< index in the rank's schedule
    int step = 0;
    OpKind kind = OpKind::attend;
    Lane lane = Lane::compute;
    int peer = -1;          ///< as in Op
    int owner = 0;          ///< as in Op
    Picoseconds begin = 0;  ///< common clock of all ranks, 0 when the pass starts
    Picoseconds end = 0;
    Picoseconds busy =
        0;  ///< time that the operation's own processor worked on it: CPU time of the rank, or end - begin
    std::int64_t cells = 0;  ///< as in Op
    std::int64_t bytes = 0;  ///< as in Op
};

struct Timeline {
    int ranks = 0;
    std::vector<Span> spans;  ///< by rank, then in the order of the rank's schedule

    /// End of the last span, 0 if there is none.
    Picoseconds makespan() const;
};

/// Per-rank totals over a timeline.
struct RankTotals {
    Picoseconds compute = 0;        ///< sum of busy over the compute lane
    Picoseconds communication = 0;  ///< length of the union of all transfer spans
    Picoseconds exposed = 0;  ///< time up to the rank's last span during which its compute lane had nothing running
    Picoseconds end = 0;      ///< end of the rank's last span
    std::int64_t cells = 0;   ///< as in Op, attends only
    std::int64_t bytes_sent = 0;
    std::int64_t bytes_received = 0;
};

/// One entry per rank.
std::vector<RankTotals> totals(const Timeline& timeline);

/// Largest over mean: 1 is perfect balance. Returns 1 for all zeros. `values` must not be empty.
double imbalance(const std::vector<double>& values);

}  // namespace ringlab::layouts
