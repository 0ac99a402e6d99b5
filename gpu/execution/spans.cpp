#include "gpu/execution/results.hpp"

#include "layouts/basics/counts.hpp"

#include <algorithm>
#include <limits>
#include <map>

namespace ringlab::gpu {

using layouts::Picoseconds;

namespace {

using Interval = std::pair<Picoseconds, Picoseconds>;

void share_out(const layouts::RankProgram& program, const std::vector<std::size_t>& attends,
               const std::vector<Picoseconds>& awaited, std::vector<Interval>& intervals) {
    const auto work = [&](std::size_t attend) {
        const auto& op = program.code[attend].op;
        return static_cast<double>(op.pair_count) * op.rows().heads.count();
    };
    const auto [begin, end] = intervals[attends.front()];
    double all = 0, done = 0;
    for (const auto attend : attends) all += work(attend);
    std::vector<Picoseconds> latest(attends.size() + 1, end);  // latest end that keeps all later attends in order
    for (auto i = attends.size(); i-- > 0;) latest[i] = std::min(latest[i + 1], awaited[attends[i]]);
    auto now = begin;
    for (std::size_t i = 0; i < attends.size(); ++i) {
        done += work(attends[i]);
        for (const auto before : program.code[attends[i]].op.after())
            now = std::max(now, intervals[size(before)].second);
        now = std::min(now, latest[i]);
        const auto share = begin + static_cast<Picoseconds>(static_cast<double>(end - begin) * done / all);
        intervals[attends[i]] = {now, std::clamp(share, now, latest[i])};
        now = intervals[attends[i]].second;
    }
}

/// Corrects the ends of messages with an arrival flag (Message::has_arrival_flag). An operation that waits for such a
/// message goes on when it sees the flag, some microseconds before the receiving lane records the end. So the message
/// has ended at the latest when the first operation that waited for it began, or the next one on its lane.
void end_when_told(const Rank& rank, const layouts::RankProgram& program, const std::vector<Picoseconds>& awaited,
                   std::vector<Interval>& intervals) {
    std::map<layouts::Lane, Picoseconds> next;  // by lane: begin of the next operation
    for (auto i = program.operations; i-- > 0;) {
        const auto& instruction = program.code[i];
        auto& [begin, end] = intervals[i];
        const auto behind = next.find(instruction.op.lane());
        if (instruction.receives() && rank.has_arrival_flag(program.pass, i)) {
            end = std::min(end, awaited[i]);
            if (behind != next.end()) end = std::min(end, behind->second);
            begin = std::min(begin, end);
        }
        next[instruction.op.lane()] = begin;
    }
}

/// Begin and end of every operation.
std::vector<Interval> intervals_of(const Rank& rank, const layouts::RankProgram& program, const PassEvents& events,
                                   const DeviceClock& clock) {
    std::vector<Interval> intervals(program.operations);
    // By attend: when the first operation began that waited for it.
    std::vector<Picoseconds> awaited(program.operations, std::numeric_limits<Picoseconds>::max());
    for (std::size_t i = 0; i < program.operations; ++i) {
        const auto* launch = rank.launches(program.pass).find(i);
        const auto first = launch ? launch->attends.front() : i;
        intervals[i] = {clock.time(events.begin[first]), clock.time(events.end[first])};
        if (launch) continue;
        for (const auto before : program.code[i].op.after())
            awaited[size(before)] = std::min(awaited[size(before)], intervals[i].first);
    }
    end_when_told(rank, program, awaited, intervals);
    for (std::size_t i = 0; i < program.operations; ++i)
        if (const auto* launch = rank.launches(program.pass).find(i); launch && launch->attends.front() == i)
            share_out(program, launch->attends, awaited, intervals);
    return intervals;
}

/// The same for a pass that is one launch. Its attends share its time. Rows travel at its begin and results at its end,
/// and their messages and merges take no time of their own, because nobody sees it.
std::vector<Interval> intervals_of_launch(const layouts::RankProgram& program, const PassEvents& events,
                                          const DeviceClock& clock) {
    const Interval all{clock.time(events.start), clock.time(events.finish)};
    std::vector<Interval> intervals(program.operations);
    std::vector<std::size_t> attends;
    for (std::size_t i = 0; i < program.operations; ++i) {
        const auto& op = program.code[i].op;
        const auto moment = op.transfers() && op.pool == layouts::Pool::q ? all.first : all.second;
        intervals[i] = {moment, moment};
        if (op.kind == layouts::OpKind::attend) attends.push_back(i);
    }
    if (attends.empty()) return intervals;
    intervals[attends.front()] = all;
    share_out(program, attends, std::vector<Picoseconds>(program.operations, std::numeric_limits<Picoseconds>::max()),
              intervals);
    return intervals;
}

}  // namespace

std::vector<layouts::Span> spans_of(const Rank& rank, layouts::Pass pass, int ring_rank, const PassEvents& events,
                                    const DeviceClock& clock) {
    const auto& program = rank.program(pass);
    const auto intervals = rank.is_one_launch(pass) ? intervals_of_launch(program, events, clock)
                                                    : intervals_of(rank, program, events, clock);
    std::vector<layouts::Span> spans;
    for (std::size_t i = 0; i < program.operations; ++i) {
        const auto& op = program.code[i].op;
        const auto [begin, end] = intervals[i];
        auto& span =
            spans.emplace_back(layouts::span_of(ring_rank, static_cast<layouts::OpIndex>(i), op, program.query_heads));
        span.posted = begin;
        span.end = end;
    }
    return spans;
}

}  // namespace ringlab::gpu
