#include "sim/report/chrome_trace.hpp"

#include "layouts/basics/require.hpp"
#include "layouts/program/walk.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

namespace ringlab::sim {
namespace {

using layouts::channel_of;
using layouts::Interval;
using layouts::Lane;
using layouts::OpKind;
using layouts::Picoseconds;
using layouts::Span;

// Thread ids of a process: lane * tracks_per_lane + track. The host comes after the lanes.
constexpr int tracks_per_lane = 64;

std::string json_text(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string microseconds(Picoseconds time) {
    constexpr Picoseconds per_microsecond = 1000000;
    const auto size = std::abs(time);  // measured times may be negative
    return fmt::format("{}{}.{:06}", time < 0 ? "-" : "", size / per_microsecond, size % per_microsecond);
}

class Writer {
public:
    Writer(std::ostream& out, layouts::Interval ranks) : out_(out), ranks_(ranks) { out_ << chrome_trace_begin; }

    void add(const TraceGroup& group) {
        const auto& spans = group.timeline->spans;
        require(group.host_issue.empty() || group.host_issue.size() == spans.size(),
                "{} issue times for {} spans; give one each, or none", group.host_issue.size(), spans.size());
        std::vector<std::size_t> order(spans.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::erase_if(order, [&](std::size_t i) { return !ranks_.contains(spans[i].rank); });
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return std::tie(spans[a].posted, spans[a].op) < std::tie(spans[b].posted, spans[b].op);
        });
        name_processes(group, order);
        name_lanes(group);
        for (const auto i : order) slices(spans[i]);
        if (!group.host_issue.empty()) {
            std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
                return group.host_issue[a].begin < group.host_issue[b].begin;
            });
            for (const auto i : order)
                if (group.host_issue[i].size() > 0) host_slice(spans[i], group.host_issue[i]);
        }
        arrows(group);
        first_process_ += group.timeline->ranks;
        track_ends_.clear();
        tracks_.clear();
    }

    void finish() { out_ << "\n]}\n"; }

private:
    template <class... Args>
    void event(fmt::format_string<Args...> format, Args&&... args) {
        out_ << (first_event_ ? "\n" : ",\n") << '{' << fmt::format(format, std::forward<Args>(args)...) << '}';
        first_event_ = false;
    }

    int process(int rank) const { return first_process_ + rank; }

    void name_processes(const TraceGroup& group, const std::vector<std::size_t>& order) {
        std::vector<int> ranks;
        for (const auto i : order) ranks.push_back(group.timeline->spans[i].rank);
        std::sort(ranks.begin(), ranks.end());
        ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
        for (const auto rank : ranks) {
            event(R"("ph":"M","name":"process_name","pid":{},"args":{{"name":{}}})", process(rank),
                  json_text(fmt::format("{} rank {}", group.name, rank)));
            event(R"("ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}})", process(rank));
        }
    }

    /// Also gives the host a lane, after all lanes of the group.
    void name_lanes(const TraceGroup& group) {
        lane_names_ = group.lane_names;
        for (const auto& span : group.timeline->spans)
            for (auto lane = static_cast<Lane>(lane_names_.size()); lane <= span.lane; ++lane)
                lane_names_.push_back(fmt::format("lane {}", lane));
        host_lane_ = static_cast<Lane>(lane_names_.size());
        lane_names_.push_back("host");
    }

    /// The first track of a lane that is free at time.begin.
    int track(int rank, Lane lane, const Interval& time) {
        auto& ends = track_ends_[{rank, lane}];
        std::size_t at = 0;
        while (at < ends.size() && ends[at] > time.begin) ++at;
        if (at == ends.size()) {
            require(at < tracks_per_lane, "more than {} spans of rank {} and lane {} run at a time", tracks_per_lane,
                    rank, lane);
            ends.push_back(0);
            auto name = lane_names_[static_cast<std::size_t>(lane)];
            if (at > 0) name += fmt::format(" ({})", at + 1);
            const auto thread = lane * tracks_per_lane + static_cast<int>(at);
            event(R"("ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}})", process(rank), thread,
                  json_text(name));
            event(R"("ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}})", process(rank),
                  thread, thread);
        }
        ends[at] = time.end;
        return lane * tracks_per_lane + static_cast<int>(at);
    }

    void slices(const Span& span) {
        const auto thread = track(span.rank, span.lane, {span.posted, span.end});
        tracks_[{span.rank, span.op}] = thread;
        const auto* kind = layouts::to_string(span.kind);
        if (span.posted < span.begin)
            event(
                R"("ph":"X","name":"wait to {} {}","cat":"wait","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"op":{}}})",
                kind, span.block, process(span.rank), thread, microseconds(span.posted),
                microseconds(span.begin - span.posted), span.op);
        event(
            R"("ph":"X","name":"{} {}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"op":{},"step":{},"block":{},"peer":{},"pairs":{},"bytes":{}}})",
            kind, span.block, kind, process(span.rank), thread, microseconds(span.begin),
            microseconds(span.end - span.begin), span.op, span.step, span.block, span.peer, span.pair_count,
            span.bytes);
    }

    void host_slice(const Span& span, const Interval& time) {
        const auto thread = track(span.rank, host_lane_, time);
        event(R"("ph":"X","name":"issue {}","cat":"issue","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"op":{}}})",
              layouts::to_string(span.kind), process(span.rank), thread, microseconds(time.begin),
              microseconds(time.size()), span.op);
    }

    /// The n-th send from one rank to another on a channel belongs to the n-th receive there.
    void arrows(const TraceGroup& group) {
        std::map<std::tuple<int, int, int>, std::vector<const Span*>> sends;  // by source, destination, channel
        for (const auto& span : group.timeline->spans)
            if (span.kind == OpKind::send) sends[{span.rank, span.peer, channel_of(span.lane)}].push_back(&span);
        std::map<std::tuple<int, int, int>, std::size_t> received;
        for (const auto& span : group.timeline->spans) {
            if (span.kind != OpKind::receive) continue;
            const std::tuple key{span.peer, span.rank, channel_of(span.lane)};
            const auto number = received[key]++;
            const auto found = sends.find(key);
            if (found == sends.end() || number >= found->second.size()) continue;
            const auto& send = *found->second[number];
            const auto from = tracks_.find({send.rank, send.op}), to = tracks_.find({span.rank, span.op});
            if (from == tracks_.end() || to == tracks_.end()) continue;  // filtered out
            const auto id = next_arrow_++;
            // A viewer binds an arrow to the slice around each of its ends, so the arrow must end within the receive.
            const auto end = std::max(span.begin, span.end - 1);
            event(R"("ph":"s","name":"hop","cat":"hop","id":{},"pid":{},"tid":{},"ts":{})", id, process(send.rank),
                  from->second, microseconds(send.begin));
            event(R"("ph":"f","bp":"e","name":"hop","cat":"hop","id":{},"pid":{},"tid":{},"ts":{})", id,
                  process(span.rank), to->second, microseconds(std::max(end, send.begin)));
        }
    }

    std::ostream& out_;
    const layouts::Interval ranks_;
    bool first_event_ = true;
    int first_process_ = 1;
    std::int64_t next_arrow_ = 1;
    std::vector<std::string> lane_names_;  // of the group
    Lane host_lane_ = 0;
    std::map<std::pair<int, Lane>, std::vector<Picoseconds>> track_ends_;  // by rank and lane
    std::map<std::pair<int, layouts::OpIndex>, int> tracks_;               // by rank and operation
};

}  // namespace

void write_chrome_trace(std::ostream& out, std::span<const TraceGroup> groups, layouts::Interval ranks) {
    Writer writer(out, ranks);
    for (const auto& group : groups) {
        require(group.timeline != nullptr, "trace group '{}' has no timeline", group.name);
        writer.add(group);
    }
    writer.finish();
}

}  // namespace ringlab::sim
