#include "layouts/program/timeline.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <numeric>

namespace ringlab::layouts {
namespace {

/// Length of the union of intervals.
Picoseconds covered(std::vector<Interval> intervals) {
    Picoseconds length = 0;
    for (const auto& interval : merged(std::move(intervals), 1)) length += interval.size();
    return length;
}

}  // namespace

std::int64_t pairs_of(const Op& attend, int query_heads) {
    // Pairs of heads [0, h), rounded down; differences of these prefix sums add up exactly. pair_count * h could
    // overflow.
    const auto below = [&](int h) {
        return attend.pair_count / query_heads * h + attend.pair_count % query_heads * h / query_heads;
    };
    return below(attend.rows().heads.end) - below(attend.rows().heads.begin);
}

Span span_of(int rank, OpIndex index, const Op& op, int query_heads) {
    Span span;
    span.rank = rank;
    span.op = index;
    span.step = op.step;
    span.kind = op.kind;
    span.lane = op.lane();
    span.pool = op.pool;
    span.peer = op.peer;
    span.block = op.part.block;
    span.pair_count = op.kind == OpKind::attend ? pairs_of(op, query_heads) : 0;
    span.bytes = op.bytes;
    return span;
}

Picoseconds Timeline::makespan() const {
    Picoseconds end = 0;
    for (const auto& span : spans) end = std::max(end, span.end);
    return end;
}

std::size_t typical(std::span<const Timeline> timelines) {
    std::vector<std::pair<Picoseconds, std::size_t>> all;
    for (std::size_t i = 0; i < timelines.size(); ++i) all.emplace_back(timelines[i].makespan(), i);
    std::ranges::sort(all);
    return all.at((all.size() - 1) / 2).second;
}

void set_begins(Timeline& timeline, const Program& program) {
    std::vector<std::size_t> first;  // by rank, of its spans
    std::size_t count = 0;
    for (const auto& rank : program.ranks) {
        first.push_back(count);
        count += rank.operations;
    }
    require(timeline.spans.size() == count, "the timeline has {} spans, the program {} operations",
            timeline.spans.size(), count);
    for (auto& span : timeline.spans) {
        const auto& instruction =
            program.ranks[static_cast<std::size_t>(span.rank)].code[static_cast<std::size_t>(span.op)];
        span.begin = span.posted;
        if (instruction.partner < 0) continue;
        const auto peer = static_cast<std::size_t>(span.peer);
        const auto partner = static_cast<std::size_t>(instruction.partner);
        if (partner >= program.ranks[peer].operations) continue;  // a served send has no span of its own
        span.begin =
            std::clamp(timeline.spans[first[peer] + partner].posted, span.posted, std::max(span.posted, span.end));
    }
}

std::vector<RankTotals> totals(const Timeline& timeline) {
    const auto ranks = static_cast<std::size_t>(timeline.ranks);
    std::vector<RankTotals> all(ranks);
    std::vector<std::vector<Interval>> computes(ranks), transfers(ranks), posted(ranks);
    for (const auto& span : timeline.spans) {
        const auto rank = static_cast<std::size_t>(span.rank);
        auto& total = all[rank];
        total.end = std::max(total.end, span.end);
        if (span.lane == compute_lane) {
            computes[rank].push_back({span.begin, span.end});
            total.compute += span.busy;
            if (span.kind == OpKind::attend) total.pair_count += span.pair_count;
        } else {
            transfers[rank].push_back({span.begin, span.end});
            posted[rank].push_back({span.posted, span.end});
            (span.kind == OpKind::send ? total.bytes_sent : total.bytes_received) += span.bytes;
        }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        all[rank].communication = covered(std::move(transfers[rank]));
        all[rank].waiting = covered(std::move(posted[rank])) - all[rank].communication;
        all[rank].exposed = all[rank].end - covered(std::move(computes[rank]));
    }
    return all;
}

TimeOfRank time_of_rank(const Timeline& timeline, int rank) {
    std::vector<Interval> computes, busy, busy_or_posted;
    auto first = std::numeric_limits<Picoseconds>::max();
    for (const auto& span : timeline.spans)
        if (span.rank == rank && span.lane == compute_lane) first = std::min(first, span.begin);
    for (const auto& span : timeline.spans) {
        if (span.rank != rank) continue;
        if (span.lane == compute_lane) computes.push_back({span.begin, span.end});
        busy.push_back({span.begin, span.end});
        busy_or_posted.push_back({std::min(span.begin, std::max(first, span.posted)), span.end});
    }
    const auto computing = covered(std::move(computes)), is_busy = covered(std::move(busy));
    return {computing, is_busy - computing, covered(std::move(busy_or_posted)) - is_busy};
}

double imbalance(const std::vector<double>& values) {
    require(!values.empty(), "imbalance of no values; there must be at least one rank");
    const auto sum = std::accumulate(values.begin(), values.end(), 0.0);
    if (sum == 0) return 1;
    return *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) / sum;
}

}  // namespace ringlab::layouts
