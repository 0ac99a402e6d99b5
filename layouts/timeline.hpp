#pragma once

#include "layouts/program.hpp"
#include "layouts/units.hpp"

#include <vector>

namespace ringlab::layouts {

/// One operation as it ran, or as it is predicted to run. Interpreters produce these; who made them does not show.
struct Span {
    int rank = 0;
    OpIndex op = 0;  ///< index in the rank's schedule
    int step = 0;
    OpKind kind = OpKind::attend;
    Lane lane = compute_lane;
    Pool pool = Pool::kv;  ///< as in Op
    int peer = -1;         ///< as in Op
    int block = 0;         ///< of Op::part
    // On a common clock of all ranks, 0 when the pass starts.
    Picoseconds posted = 0;  ///< the operation's own side was ready
    Picoseconds begin = 0;   ///< both sides were: from here on bytes could move; of others the same as posted
    Picoseconds end = 0;
    Picoseconds busy =
        0;  ///< time that the operation's own processor worked on it: CPU time of the rank, or end - begin
    std::int64_t cells = 0;  ///< pairs_of() an attend: those of a pass sum to what the mask shows one query head
    std::int64_t bytes = 0;  ///< as in Op
};

/// The visible pairs of one query head and batch element that an attend accounts for: all of Op::cells if it is of all
/// `query_heads`, and else a share of them, so that the attends of all heads to one block sum to its visible pairs.
std::int64_t pairs_of(const Op& attend, int query_heads);

/// The span of an operation, without its times.
Span span_of(int rank, OpIndex index, const Op& op, int query_heads);

struct Timeline {
    int ranks = 0;
    std::vector<Span> spans;  ///< by rank, then in the order of the rank's schedule

    /// End of the last span, 0 if there is none.
    Picoseconds makespan() const;
};

/// Per-rank totals over a timeline.
struct RankTotals {
    Picoseconds compute = 0;        ///< sum of busy over the compute lane
    Picoseconds communication = 0;  ///< length of the union of all transfers from begin to end
    Picoseconds waiting = 0;  ///< time in which some transfer was posted and waited for its peer, and none was moving
    Picoseconds exposed = 0;  ///< time up to the rank's last span during which its compute lane had nothing running
    Picoseconds end = 0;      ///< end of the rank's last span
    std::int64_t cells = 0;   ///< as in Span
    std::int64_t bytes_sent = 0;
    std::int64_t bytes_received = 0;
};

/// Sets `begin` of every message, executed by `program`, to when the later of its two sides was posted, and of all
/// other spans to when they were. Where clocks of ranks disagree a little, never outside [posted, end].
void set_begins(Timeline& timeline, const Program& program);

/// One entry per rank.
std::vector<RankTotals> totals(const Timeline& timeline);

/// Time in which the rank waits for late peers: after its first compute began it computes nothing, moves nothing, and
/// some message is posted whose other side is not.
Picoseconds waited_for_peers(const Timeline& timeline, int rank);

/// Largest over mean: 1 is perfect balance. Returns 1 for all zeros. `values` must not be empty.
double imbalance(const std::vector<double>& values);

}  // namespace ringlab::layouts
