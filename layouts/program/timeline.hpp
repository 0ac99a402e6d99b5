#pragma once

#include "layouts/basics/basic_types.hpp"
#include "layouts/program/program.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace ringlab::layouts {

/// One operation as it was executed, or as it was predicted. All interpreters of schedules produce spans of this form.
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
    Picoseconds posted = 0;  ///< when the operation was ready on this rank
    Picoseconds begin = 0;   ///< messages: when both sides were ready, so that bytes could move; others: as posted
    Picoseconds end = 0;
    Picoseconds busy = 0;  ///< time spent on it: CPU time of the rank on CPU ranks, elsewhere end - begin
    /// Attend: pairs_of(). Over a pass they sum to the mask's visible pairs of one query head.
    std::int64_t pair_count = 0;
    std::int64_t bytes = 0;  ///< as in Op
};

/// Visible pairs of one query head and batch element that are attributed to an attend: Op::pair_count times the
/// attend's share of the `query_heads`, rounded such that attends that cover all heads once sum to Op::pair_count.
std::int64_t pairs_of(const Op& attend, int query_heads);

/// The span of an operation, without its times.
Span span_of(int rank, OpIndex index, const Op& op, int query_heads);

/// When all operations of one pass ran on all ranks.
struct Timeline {
    int ranks = 0;
    std::vector<Span> spans;  ///< by rank, then in the order of the rank's schedule

    /// End of the last span, 0 if there is none.
    Picoseconds makespan() const;
};

/// Index of the timeline whose makespan is the median, the lower one of two in the middle. `timelines` must not be
/// empty.
std::size_t typical(std::span<const Timeline> timelines);

/// In which repeats of a pass every operation is timed. On GPUs this takes two events with a time stamp for each
/// operation, which makes short passes slower.
enum class Timelines {
    none,
    extra,  ///< in extra passes after the timed ones, of which one with the median time is kept
    all,
};

/// One pass of all ranks of a ring, as often as it was executed.
struct PassRun {
    std::vector<Timeline> timelines;           ///< by repeat, one of a typical extra pass, or none: see Timelines
    std::vector<std::vector<double>> seconds;  ///< by repeat and rank: from the pass's start to its end on this one
    std::vector<std::vector<double>> issue;    ///< likewise: host time until everything was enqueued; may be missing
    /// Likewise: rotating q and k before a forward pass, dq and dk after a backward pass; no part of `seconds`. Empty
    /// if nothing is rotated.
    std::vector<std::vector<double>> rotation;
    double period = 0;  ///< mean seconds from a pass's start to the next one's; 0: not known

    /// The timeline with the median makespan. There must be one.
    const Timeline& timeline() const { return timelines[typical(timelines)]; }
};

/// Per-rank totals over a timeline.
struct RankTotals {
    Picoseconds compute = 0;        ///< sum of busy over the compute lane
    Picoseconds communication = 0;  ///< length of the union of all transfers from begin to end
    Picoseconds waiting = 0;  ///< time in which some transfer was posted and waited for its peer, and none was moving
    Picoseconds exposed = 0;  ///< time up to the rank's last span during which its compute lane had nothing running
    Picoseconds end = 0;      ///< end of the rank's last span
    std::int64_t pair_count = 0;  ///< as in Span
    std::int64_t bytes_sent = 0;
    std::int64_t bytes_received = 0;
};

/// Sets `begin` of all spans of a timeline that was recorded while executing `program`: for a message to the time when
/// the later of its two sides was posted, but within its own [posted, end], because clocks of ranks may disagree a
/// little; for all other spans to `posted`. Throws Error if the number of spans is not that of the program's
/// operations.
void set_begins(Timeline& timeline, const Program& program);

/// One entry per rank.
std::vector<RankTotals> totals(const Timeline& timeline);

/// How a rank spends the time up to its last span. What is left is neither of these: its host has not issued the next
/// operation.
struct TimeOfRank {
    Picoseconds computing = 0;     ///< its compute lane runs something
    Picoseconds transferring = 0;  ///< it computes nothing, and a message moves
    /// It computes nothing and moves nothing, and a message is posted whose other side is not. Counted from its first
    /// compute operation on.
    Picoseconds waiting = 0;
};
TimeOfRank time_of_rank(const Timeline& timeline, int rank);

/// Largest over mean: 1 is perfect balance. Returns 1 for all zeros. `values` must not be empty.
double imbalance(const std::vector<double>& values);

}  // namespace ringlab::layouts
