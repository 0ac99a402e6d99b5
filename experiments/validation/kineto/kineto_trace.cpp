#include "experiments/validation/kineto/kineto_trace.hpp"

#include "experiments/files/files_read.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#ifdef RINGLAB_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <streambuf>
#include <string_view>
#include <utility>

namespace ringlab::experiments {
namespace {

using layouts::Interval;
using layouts::OpKind;
using layouts::Picoseconds;
using nlohmann::json;

bool has_any(const std::string& text, std::initializer_list<std::string_view> parts) {
    return std::ranges::any_of(parts, [&](auto part) { return text.find(part) != std::string::npos; });
}

enum class Activity { attention_forward, attention_backward, message, other };

Activity activity_of(std::string name) {
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (name.starts_with("nccl") || name.starts_with("gloo:") || has_any(name, {"nvshmem", "memcpy ptop"}))
        return Activity::message;
    const bool of_ringlab = name.find("ringlab") != std::string::npos &&
                            has_any(name, {"forward_kernel", "split_kv_kernel", "backward_kernel", "query_gradient"});
    if (!of_ringlab && !has_any(name, {"attention", "attn", "fmha", "flash_fwd", "flash_bwd", "sdpa"}))
        return Activity::other;
    const bool is_backward = has_any(name, {"bwd", "backward", "bprop", "cutlassb", "query_gradient"});
    return is_backward ? Activity::attention_backward : Activity::attention_forward;
}

struct Event {
    std::string name, thread;
    double begin = 0, end = 0;  // us
    Activity activity = Activity::other;
};

/// The parts of a file that count, before they are checked.
struct Contents {
    std::vector<Event> of_gpu, of_cpu;
    json job;  // distributedInfo
    double base_us = 0;
    bool is_trace = false;
};

void take_event(Contents& contents, const json& event) {
    if (event.value("ph", "") != "X") return;
    const auto number = [&](const char* key) {
        const auto found = event.find(key);
        return found != event.end() && found->is_number() ? found->get<double>() : NAN;
    };
    const auto text = [&](const char* key) {
        const auto found = event.find(key);
        return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    const auto begin = number("ts"), duration = number("dur");
    const auto category = text("cat");
    const bool of_gpu = category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset";
    if (!std::isfinite(begin) || !(duration >= 0) || !std::isfinite(begin + duration)) return;
    Event one{text("name"), event.value("pid", json()).dump() + "/" + event.value("tid", json()).dump(), begin,
              begin + duration};
    one.activity = activity_of(one.name);
    const bool by_gloo = one.name.starts_with("gloo:");
    const bool of_cpu =
        by_gloo ||
        (category == "cpu_op" && one.activity != Activity::message &&
         (one.activity != Activity::other || one.name.starts_with("aten::") || one.name.starts_with("ringlab::")));
    if (of_gpu)
        contents.of_gpu.push_back(std::move(one));
    else if (of_cpu)
        contents.of_cpu.push_back(std::move(one));
}

#ifdef RINGLAB_ZLIB
/// What a file holds, decompressed if it is compressed.
class Decompressed : public std::streambuf {
public:
    explicit Decompressed(const std::string& file) : file_(gzopen(file.c_str(), "rb")) {}
    ~Decompressed() override {
        if (file_) gzclose(file_);
    }
    Decompressed(const Decompressed&) = delete;
    Decompressed& operator=(const Decompressed&) = delete;

protected:
    int_type underflow() override {
        const auto count = file_ ? gzread(file_, buffer_.data(), static_cast<unsigned>(buffer_.size())) : 0;
        if (count <= 0) return traits_type::eof();
        setg(buffer_.data(), buffer_.data(), buffer_.data() + count);
        return traits_type::to_int_type(*gptr());
    }

private:
    gzFile file_;
    std::array<char, 1 << 16> buffer_;
};
#endif

/// Events are taken one by one as they are parsed, because the files are large.
Contents parsed(const std::string& file) {
    std::ifstream plain(file, std::ios::binary);
    require(plain.good(), "'{}' cannot be read; give a trace that torch.profiler has exported", file);
    note_read(file);
#ifdef RINGLAB_ZLIB
    Decompressed decompressed(file);
    std::istream in(&decompressed);
#else
    require(!file.ends_with(".gz"), "'{}' is compressed, and this build has no zlib; decompress it first (gunzip -k)",
            file);
    auto& in = plain;
#endif
    Contents contents;
    try {
        const auto rest = json::parse(in, [&](int, json::parse_event_t happened, json& value) {
            if (happened != json::parse_event_t::object_end || !value.contains("ph")) return true;
            take_event(contents, value);
            return false;
        });
        contents.is_trace = rest.is_object() && rest.contains("traceEvents");
        if (contents.is_trace) {
            contents.job = rest.value("distributedInfo", json());
            contents.base_us = rest.value("baseTimeNanoseconds", 0.0) / 1e3;
        }
    } catch (const json::parse_error& error) {
        fail("'{}' is not whole: its JSON ends, or breaks, at byte {}; export the trace again", file, error.byte);
    } catch (const json::exception&) {
        fail("'{}' is no trace of torch.profiler; give what export_chrome_trace() has written", file);
    }
    require(contents.is_trace, "'{}' has no traceEvents; give what export_chrome_trace() of torch.profiler has written",
            file);
    return contents;
}

/// Leaves out operators of attention that contain another one, because the rest of their time is not attention.
void keep_innermost_attention(std::vector<Event>& events) {
    const auto is_attention = [](const Event& event) {
        return event.activity == Activity::attention_forward || event.activity == Activity::attention_backward;
    };
    std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
        return std::tuple(a.thread, a.begin, -a.end) < std::tuple(b.thread, b.begin, -b.end);
    });
    const Event* last = nullptr;  // of attention
    std::set<const Event*> outer;
    for (const auto& event : events) {
        if (!is_attention(event)) continue;
        if (last && last->thread == event.thread && event.end <= last->end) outer.insert(last);
        last = &event;
    }
    std::vector<Event> kept;
    for (const auto& event : events)
        if (!outer.contains(&event)) kept.push_back(event);
    events = std::move(kept);
}

/// Length of the union of intervals.
Picoseconds covered(std::vector<Interval> intervals) {
    std::ranges::sort(intervals, {}, &Interval::begin);
    Picoseconds length = 0, reached = 0;
    for (const auto& [begin, end] : intervals) {
        length += std::max<Picoseconds>(0, end - std::max(begin, reached));
        reached = std::max(reached, end);
    }
    return length;
}

layouts::Span span_of(const Event& event, double first_us) {
    layouts::Span span;
    const bool sends = event.name.find("send") != std::string::npos && event.name.starts_with("gloo:");
    span.kind = event.activity == Activity::message ? (sends ? OpKind::send : OpKind::receive)
                : event.activity == Activity::other ? OpKind::copy
                                                    : OpKind::attend;
    span.lane = span.kind == OpKind::send ? 1 : span.kind == OpKind::receive ? 2 : layouts::compute_lane;
    span.begin = span.posted = layouts::to_picoseconds((event.begin - first_us) * 1e-6);
    span.end = layouts::to_picoseconds((event.end - first_us) * 1e-6);
    span.busy = span.end - span.begin;
    return span;
}

}  // namespace

KinetoTrace read_kineto(const std::string& file) {
    auto contents = parsed(file);
    KinetoTrace trace;
    trace.file = file;
    const auto& job = contents.job;
    const auto number = [&](const char* key) -> std::optional<int> {
        if (!job.is_object() || !job.contains(key) || !job[key].is_number_integer()) return {};
        return job[key].get<int>();
    };
    const auto rank = number("rank"), world = number("world_size");
    require(rank && world && *rank >= 0 && *rank < *world,
            "'{}' does not say which rank it is of (distributedInfo); profile after init_process_group()", file);
    trace.rank = *rank;
    trace.world = *world;
    if (const auto groups = job.find("pg_config"); groups != job.end() && groups->is_array())
        for (const auto& group : *groups) {
            const auto ranks = group.is_object() ? group.value("ranks", json()) : json();
            // A group of one rank exchanges nothing, so its trace is not enough for a job of several ranks.
            if (ranks.is_array() && ranks.size() > 1 &&
                std::ranges::all_of(ranks, [](const json& one) { return one.is_number_integer(); }))
                trace.groups.push_back(ranks.get<std::vector<int>>());
        }

    auto& events = contents.of_gpu.empty() ? contents.of_cpu : contents.of_gpu;
    const auto* what = contents.of_gpu.empty() ? "operators" : "GPU kernels";
    if (contents.of_gpu.empty()) keep_innermost_attention(events);
    const auto is_attention = [](const Event& event) {
        return event.activity == Activity::attention_forward || event.activity == Activity::attention_backward;
    };
    require(std::ranges::any_of(events, is_attention),
            "'{}' has no attention among its {} {}, by their names; profile steps that attend", file, events.size(),
            what);

    // From the first to the last event of attention or of a message. What the job did before and after is left out.
    double first = INFINITY, last = -INFINITY;
    for (const auto& event : events)
        if (event.activity != Activity::other) {
            first = std::min(first, event.begin);
            last = std::max(last, event.end);
        }
    constexpr double most_us = 1e12;
    require(last - first <= most_us, "'{}' lasts {:.3g} s; profile a few steps, at most 10^6 s", file,
            (last - first) * 1e-6);
    trace.begin_us = contents.base_us + first;
    std::erase_if(events, [&](const Event& event) { return event.begin < first || event.end > last; });
    std::ranges::stable_sort(events, {}, &Event::begin);
    std::array<std::vector<Interval>, 2> attention;
    for (const auto& event : events) {
        const auto& span = trace.spans.emplace_back(span_of(event, first));
        if (is_attention(event))
            attention[event.activity == Activity::attention_backward].push_back({span.begin, span.end});
    }
    for (std::size_t pass = 0; pass < 2; ++pass) trace.attention[pass] = covered(std::move(attention[pass]));
    return trace;
}

MeasuredRanks join_ranks(std::vector<KinetoTrace> traces) {
    require(!traces.empty(), "no trace is given; give one of each rank");
    std::ranges::stable_sort(traces, {}, &KinetoTrace::rank);
    MeasuredRanks measured;
    for (const auto& trace : traces) {
        const auto& first = traces.front();
        require(trace.world == first.world,
                "'{}' is of a job of {} ranks and '{}' of one of {}; give traces of one job", first.file, first.world,
                trace.file, trace.world);
        if (!measured.ranks.empty())
            require(measured.ranks.back() != trace.rank,
                    "'{}' and '{}' are both of rank {}; give one trace of each rank",
                    traces[measured.ranks.size() - 1].file, trace.file, trace.rank);
        measured.ranks.push_back(trace.rank);
    }
    auto whole_job = std::vector<int>(static_cast<std::size_t>(traces.front().world));
    std::iota(whole_job.begin(), whole_job.end(), 0);
    auto groups = traces.front().groups;
    for (auto& group : groups) std::ranges::sort(group);
    if (measured.ranks != whole_job && std::ranges::find(groups, measured.ranks) == groups.end()) {
        std::vector<int> missing;
        std::ranges::set_difference(whole_job, measured.ranks, std::back_inserter(missing));
        fail(
            "no trace of rank {} is given, of a job of {} ranks; give one of each rank of the job, or of a process "
            "group",
            missing.front(), whole_job.size());
    }

    // Uses one clock for all ranks if their times overlap.
    double earliest = INFINITY, latest_begin = -INFINITY, earliest_end = INFINITY;
    for (const auto& trace : traces) {
        Picoseconds end = 0;
        for (const auto& span : trace.spans) end = std::max(end, span.end);
        earliest = std::min(earliest, trace.begin_us);
        latest_begin = std::max(latest_begin, trace.begin_us);
        earliest_end = std::min(earliest_end, trace.begin_us + layouts::to_seconds(end) * 1e6);
    }
    measured.clocks_disagree = latest_begin > earliest_end;
    measured.timeline.ranks = static_cast<int>(traces.size());
    for (std::size_t rank = 0; rank < traces.size(); ++rank) {
        const auto late =
            measured.clocks_disagree ? 0 : layouts::to_picoseconds((traces[rank].begin_us - earliest) * 1e-6);
        for (std::size_t i = 0; i < traces[rank].spans.size(); ++i) {
            auto& span = measured.timeline.spans.emplace_back(traces[rank].spans[i]);
            span.rank = static_cast<int>(rank);
            span.op = static_cast<layouts::OpIndex>(i);
            for (auto* time : {&span.posted, &span.begin, &span.end}) *time += late;
        }
        measured.attention.push_back(traces[rank].attention);
    }
    return measured;
}

std::vector<RankShare> rank_shares(const layouts::Timeline& timeline) {
    const auto ranks = static_cast<std::size_t>(timeline.ranks);
    std::vector<std::vector<Interval>> computes(ranks), messages(ranks), all(ranks);
    for (const auto& span : timeline.spans) {
        const auto rank = static_cast<std::size_t>(span.rank);
        (span.lane == layouts::compute_lane ? computes : messages)[rank].push_back({span.begin, span.end});
        all[rank].push_back({span.begin, span.end});
    }
    const auto end = timeline.makespan();
    std::vector<RankShare> shares;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        RankShare share;
        const auto busy = covered(std::move(all[rank]));
        share.compute = covered(std::move(computes[rank]));
        share.communication = covered(std::move(messages[rank]));
        share.exposed = busy - share.compute;
        share.idle = end - busy;
        shares.push_back(share);
    }
    return shares;
}

}  // namespace ringlab::experiments
