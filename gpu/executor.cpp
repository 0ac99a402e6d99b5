#include "gpu/executor.hpp"

#include "gpu/device_clock.hpp"
#include "gpu/issuer.hpp"
#include "gpu/steady.hpp"
#include "processes/session.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>

namespace ringlab::gpu {
namespace {

using layouts::Pass;
using layouts::Picoseconds;
using layouts::Schedule;
using layouts::Span;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// A rank and where it runs.
struct Place {
    int global_rank = 0;
    int member = 0;
    int device = -1;  // as its own process numbers it; -1 in others
};

/// All that a run knows of before it touches a device.
struct Job {
    Team& team;
    const Schedule& forward;
    const Schedule* backward;
    std::span<const HostInputs> inputs;
    const GpuOptions& options;
    std::vector<layouts::Program> programs;  // by pass
    std::vector<Place> places;               // by global rank
    const Nvml& nvml;

    int passes() const { return backward ? 2 : 1; }
    const Schedule& schedule(int pass) const { return pass == 0 ? forward : *backward; }
};

/// With the others, where all meet. Longer than for anything else: who is stuck in an operation knows more, and is to
/// speak first.
Clock::duration patience_of(const GpuOptions& options) { return 2 * options.timeout; }

/// What one rank gave in one pass; times on the common clock.
struct PassTimes {
    std::vector<Picoseconds> start, finish;   // by repeat
    std::vector<double> issue;                // by repeat, seconds
    std::vector<Picoseconds> timeline_start;  // by timeline
    std::vector<Span> spans;                  // timeline after timeline
};

struct RankResult {
    int global_rank = 0;
    RankOutputs outputs;
    MemoryUse memory;
    std::array<PassTimes, 2> passes;
    Picoseconds clock_uncertainty = 0;
    std::vector<ClockSample> clocks;
    std::array<char, 256> device_name{};
};

std::string device_name(int device) {
    cudaDeviceProp properties;
    RINGLAB_CUDA(cudaGetDeviceProperties(&properties, device));
    return properties.name;
}

void require_pass(const Schedule& schedule, Pass pass) {
    require(schedule.options().pass == pass, "expected a {} schedule, got a {} one", to_string(pass),
            to_string(schedule.options().pass));
}

void require_same_work(const Schedule& forward, const Schedule& backward) {
    const auto& a = forward.problem();
    const auto& b = backward.problem();
    require(a.batch == b.batch && a.tokens == b.tokens && a.query_heads == b.query_heads && a.kv_heads == b.kv_heads &&
                a.head_dim == b.head_dim && a.value_dim == b.value_dim && a.effective_scale() == b.effective_scale() &&
                a.soft_cap == b.soft_cap && a.dtype == b.dtype,
            "the forward and the backward schedule are of different problems");
    bool same = forward.ranks() == backward.ranks();
    for (int rank = 0; same && rank < forward.ranks(); ++rank)
        same = std::ranges::equal(forward.layout().shard(rank), backward.layout().shard(rank));
    require(same, "the forward schedule has layout {}, the backward schedule {}; they must be the same",
            forward.layout().name(), backward.layout().name());
    require(forward.mask().name() == backward.mask().name(),
            "the forward schedule has mask {}, the backward schedule {}; they must be the same", forward.mask().name(),
            backward.mask().name());
}

std::vector<int> chosen_devices(const GpuOptions& options) {
    int present = 0;
    RINGLAB_CUDA(cudaGetDeviceCount(&present));
    auto chosen = options.devices;
    if (chosen.empty())
        for (int device = 0; device < present; ++device) chosen.push_back(device);
    for (const int device : chosen)
        require(0 <= device && device < present, "there is no CUDA device {}; this process sees {}", device, present);
    require(!chosen.empty(), "there is no CUDA device");
    return chosen;
}

std::vector<Place> place_ranks(const Team& team, const GpuOptions& options) {
    const int world = options.group.world();
    const auto devices = chosen_devices(options);
    const auto device_of = [&](int place) { return devices[index(place) % devices.size()]; };
    std::vector<Place> places;
    if (options.transport == TransportKind::loopback) {
        require(team.size() == 1, "the loopback transport is for one issuing thread, there are {}", team.size());
        for (int rank = 0; rank < world; ++rank) places.push_back({rank, 0, device_of(rank)});
        return places;
    }
    require(team.size() == world, "{} ranks need {} threads or processes with the {} transport, there are {}", world,
            world, to_string(options.transport), team.size());
    const bool one_process = team.local_size() == team.size();
    const int on_host = one_process ? 0 : processes::Session::current().rank_on_host();
    require(!one_process || static_cast<int>(devices.size()) >= world,
            "{} ranks need a GPU each with the {} transport, there are {}; the loopback transport shares GPUs", world,
            to_string(options.transport), devices.size());
    for (int rank = 0; rank < world; ++rank) {
        const bool local = team.first_local() <= rank && rank < team.first_local() + team.local_size();
        places.push_back({rank, rank, local ? device_of(one_process ? rank : on_host) : -1});
    }
    if (options.transport == TransportKind::nccl && one_process) {
        std::set<int> distinct;
        for (const auto& place : places) distinct.insert(place.device);
        require(static_cast<int>(distinct.size()) == world, "NCCL needs a GPU of its own for each of {} ranks", world);
    }
    return places;
}

// What travels between members is vectors, one after another in one piece of memory.

template <class Element>
void append(Bytes& bytes, const std::vector<Element>& values) {
    static_assert(std::is_trivially_copyable_v<Element>);
    const std::size_t count = values.size(), begin = bytes.size();
    bytes.resize(begin + sizeof(count) + count * sizeof(Element));
    std::memcpy(bytes.data() + begin, &count, sizeof(count));
    if (count > 0) std::memcpy(bytes.data() + begin + sizeof(count), values.data(), count * sizeof(Element));
}

template <class Element>
void take(std::span<const std::byte>& bytes, std::vector<Element>& values) {
    std::size_t count = 0;
    std::memcpy(&count, bytes.data(), sizeof(count));
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), bytes.data() + sizeof(count), count * sizeof(Element));
    bytes = bytes.subspan(sizeof(count) + count * sizeof(Element));
}

/// One member of the team: the ranks that its thread issues, from allocation to results.
class MemberRun {
public:
    MemberRun(const Job& job, Fabric& fabric, int member) : job_(job), fabric_(fabric), member_(member) {
        for (const auto& place : job.places)
            if (place.member == member) ranks_.push_back({place, {}, {}, {}, {}, {}});
    }

    /// Called on the member's own thread.
    std::vector<RankResult> run() {
        for (auto& rank : ranks_) set_up(rank);
        make_streams();
        for (const auto& [device, clock] : clocks_) sample(device, ClockSample::Moment::before);
        std::vector<RankResult> results(ranks_.size());
        for (std::size_t i = 0; i < ranks_.size(); ++i) results[i].global_rank = ranks_[i].place.global_rank;
        for (int pass = 0; pass < job_.passes(); ++pass) run_pass(pass, results);
        for (const auto& [device, clock] : clocks_) sample(device, ClockSample::Moment::after);
        for (std::size_t i = 0; i < ranks_.size(); ++i) collect(ranks_[i], results[i]);
        results.front().clocks = samples_;
        // Peers may still be reading this member's memory; and it must not go before they have let go of it.
        job_.team.barrier(member_, patience_of(job_.options));
        for (auto& rank : ranks_) {
            const DeviceScope scope(rank.place.device);
            rank.transport->leave();
        }
        job_.team.barrier(member_, patience_of(job_.options));
        return results;
    }

    /// After a failure, on the member's own thread: nothing of it is left running.
    void abort() noexcept {
        if (issuer_) issuer_->abort();
    }

private:
    struct LocalRank {
        Place place;
        std::unique_ptr<Rank> work;
        std::unique_ptr<Transport> transport;
        std::vector<std::unique_ptr<Stream>> lanes;  // its own ones
        std::vector<cudaStream_t> lane_streams;
        std::vector<PassEvents> events;  // by repeat, of the pass that runs
    };

    static Pass which(int pass) { return pass == 0 ? Pass::forward : Pass::backward; }
    int replica(const LocalRank& rank) const { return job_.options.group.replica(rank.place.global_rank); }
    int ring_rank(const LocalRank& rank) const { return job_.options.group.ring_rank(rank.place.global_rank); }

    void set_up(LocalRank& rank) {
        RINGLAB_CUDA(cudaSetDevice(rank.place.device));
        const auto& o = job_.options;
        std::vector<const layouts::Program*> programs;
        for (const auto& program : job_.programs) programs.push_back(&program);
        const MapOptions memory{o.round_running_output, o.round_results, output_arrives(job_.programs.front())};
        rank.work = std::make_unique<Rank>(job_.forward, job_.backward, ring_rank(rank), programs, fabric_,
                                           RankOptions{memory, o.deterministic, o.check_finite, o.kernels,
                                                       joined_waits(rank.place.device), o.timeout});
        rank.transport =
            fabric_.join({member_, rank.place.global_rank, rank.place.device, rank.work->exchange_memory()});
        if (job_.inputs.empty())
            rank.work->memory().load_random(rank.place.global_rank);
        else
            rank.work->memory().load(job_.inputs[index(replica(rank))]);
        clocks_.try_emplace(rank.place.device, job_.team);
    }

    /// Launches may hold a device while they wait for copies between devices, but not for what needs the device itself:
    /// NCCL's kernels, other ranks' launches, copies inside of it. Called by all members at the same time.
    JoinedWaits joined_waits(int device) const {
        const auto transport = job_.options.transport;
        if (transport == TransportKind::nccl) return JoinedWaits::apart;
        if (transport == TransportKind::loopback) return JoinedWaits::before;
        std::array<char, 32> bus_id{};
        RINGLAB_CUDA(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
        Bytes own;
        append(own, std::vector<char>(bus_id.begin(), bus_id.end()));
        const auto all = job_.team.all_gather(member_, own, patience_of(job_.options));
        const bool shared = std::ranges::count(all, own) > 1;
        return shared ? JoinedWaits::before : JoinedWaits::inside;
    }

    void make_streams() {
        constexpr auto compute = static_cast<std::size_t>(layouts::compute_lane);
        std::vector<IssuedRank> issued;
        for (auto& rank : ranks_) {
            int lanes = 1;
            for (const auto& program : job_.programs) lanes = std::max(lanes, program.lanes);
            rank.lanes.resize(index(lanes));
            rank.lane_streams.resize(index(lanes));
            RINGLAB_CUDA(cudaSetDevice(rank.place.device));
            auto& shared = compute_[rank.place.device];
            if (!shared) shared = std::make_unique<Stream>();
            for (std::size_t lane = 0; lane < rank.lanes.size(); ++lane) {
                const bool used = std::ranges::any_of(job_.programs, [&](const layouts::Program& program) {
                    return program.ranks[index(ring_rank(rank))].uses(static_cast<layouts::Lane>(lane));
                });
                if (lane != compute && used) rank.lanes[lane] = std::make_unique<Stream>(Stream::Use::transfers);
                if (lane == compute)
                    rank.lane_streams[lane] = *shared;
                else if (used)
                    rank.lane_streams[lane] = *rank.lanes[lane];
            }
            issued.push_back({ring_rank(rank), replica(rank), rank.place.global_rank, rank.place.device,
                              rank.work.get(), rank.transport.get(), rank.lane_streams});
        }
        issuer_.emplace(std::move(issued), job_.team, Issuer::Options{job_.options.group, job_.options.timeout});
    }

    void anchor_clocks() {
        for (auto& [device, clock] : clocks_) {
            const DeviceScope scope(device);
            clock.anchor(*compute_.at(device));
        }
    }

    void run_pass(int pass, std::vector<RankResult>& results) {
        const auto& options = job_.options;
        for (auto& [device, clock] : clocks_) clock = DeviceClock(job_.team);
        for (auto& rank : ranks_) rank.events.clear();
        warm_up(pass);
        anchor_clocks();
        double spent = 0;
        constexpr int most_repeats = 200;
        for (int i = 0; i < options.repeats || (i < most_repeats && !agree(spent >= options.repeat_seconds)); ++i) {
            spent += run_once(pass, options.timelines == Timelines::all, [&] {
                for (const auto& [device, clock] : clocks_) sample(device, ClockSample::Moment::during);
            });
            for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
                results[rank].passes[index(pass)].issue.push_back(
                    std::chrono::duration<double>(issuer_->issue_time()).count());
        }
        const auto repeats = ranks_.front().events.size();
        if (options.timelines == Timelines::extra) run_once(pass, true, [] {});
        anchor_clocks();
        for (std::size_t i = 0; i < ranks_.size(); ++i) note_times(ranks_[i], pass, repeats, results[i]);
    }

    void warm_up(int pass) {
        const auto& options = job_.options;
        Steady steady(options.warm_up_seconds);
        for (int i = 0; i < options.warm_up || (options.warm_up_seconds > 0 && !agree(steady.reached())); ++i) {
            steady.add(run_once(pass, false, [] {}));
            for (auto& rank : ranks_) rank.events.clear();
        }
    }

    /// One pass of all ranks; its events are appended to theirs. Returns the first rank's device time, in seconds.
    double run_once(int pass, bool timeline, const std::function<void()>& underway) {
        const auto& options = job_.options;
        if (pass == 1 && ranks_.front().work->backward_overwrites_output()) {
            std::vector<PassEvents> unwanted;
            for (const auto& rank : ranks_) {
                const DeviceScope scope(rank.place.device);
                unwanted.emplace_back(rank.work->program(Pass::forward).code.size(), false);
            }
            std::vector<PassEvents*> events;
            for (auto& one : unwanted) events.push_back(&one);
            issue(0, events, [] {});
        }
        std::vector<PassEvents*> events;
        for (auto& rank : ranks_) {
            const DeviceScope scope(rank.place.device);
            const auto& program = rank.work->program(which(pass));
            events.push_back(&rank.events.emplace_back(program.code.size(), timeline));
            if (!options.poison) continue;
            const auto stream = rank.lane_streams[static_cast<std::size_t>(layouts::compute_lane)];
            rank.work->memory().poison(which(pass), stream);
            RINGLAB_CUDA(cudaStreamSynchronize(stream));
        }
        issue(pass, events, underway);
        if (options.check_finite) require_finite(pass);
        float milliseconds = 0;
        RINGLAB_CUDA(cudaEventElapsedTime(&milliseconds, events.front()->start, events.front()->finish));
        return static_cast<double>(milliseconds) * 1e-3;
    }

    void issue(int pass, const std::vector<PassEvents*>& events, const std::function<void()>& underway) {
        issuer_->prepare(which(pass), events);
        job_.team.start_together(member_, patience_of(job_.options));
        issuer_->run(underway);
    }

    /// What the first member says.
    bool agree(bool first_says) {
        if (job_.team.size() == 1) return first_says;
        return job_.team.all_gather(member_, {std::byte{first_says}}, patience_of(job_.options)).front().front() !=
               std::byte{0};
    }

    /// All members throw the same error if any rank has found something: the one of the earliest step.
    void require_finite(int pass) {
        std::optional<NotFinite> first;
        const auto keep_earlier = [&](NotFinite found) {
            if (!first || found.step < first->step) first = std::move(found);
        };
        for (const auto& rank : ranks_) {
            const DeviceScope scope(rank.place.device);
            if (auto found = rank.work->first_not_finite(which(pass))) keep_earlier(std::move(*found));
        }
        Bytes bytes;
        if (first) {
            append(bytes, std::vector{first->step});
            append(bytes, std::vector<char>(first->what.begin(), first->what.end()));
        }
        for (const auto& other : job_.team.all_gather(member_, std::move(bytes), patience_of(job_.options))) {
            if (other.empty()) continue;
            std::span<const std::byte> rest(other);
            std::vector<int> step;
            std::vector<char> what;
            take(rest, step);
            take(rest, what);
            keep_earlier({step.front(), std::string(what.begin(), what.end())});
        }
        if (first) fail("{}", first->what);
    }

    /// The first `repeats` of a rank's events are timed passes.
    void note_times(const LocalRank& rank, int pass, std::size_t repeats, RankResult& result) const {
        const DeviceScope scope(rank.place.device);
        const auto& clock = clocks_.at(rank.place.device);
        const auto& program = rank.work->program(which(pass));
        auto& times = result.passes[index(pass)];
        for (std::size_t repeat = 0; repeat < rank.events.size(); ++repeat) {
            const auto& events = rank.events[repeat];
            if (repeat < repeats) {
                times.start.push_back(clock.time(events.start));
                times.finish.push_back(clock.time(events.finish));
            }
            const auto timelines = job_.options.timelines;
            if (timelines == Timelines::none || (timelines == Timelines::extra && repeat < repeats)) continue;
            times.timeline_start.push_back(clock.time(events.start));
            const auto intervals = intervals_of(rank, program, events);
            for (std::size_t i = 0; i < program.operations; ++i) {
                const auto& op = program.code[i].op;
                const auto [begin, end] = intervals[i];
                Span span;
                span.rank = ring_rank(rank);
                span.op = static_cast<layouts::OpIndex>(i);
                span.step = op.step;
                span.kind = op.kind;
                span.lane = op.lane();
                span.pool = op.pool;
                span.peer = op.peer;
                span.block = op.part.block;
                span.posted = begin;
                span.end = end;
                span.cells = op.cells;
                span.bytes = op.bytes;
                times.spans.push_back(span);
            }
        }
        result.clock_uncertainty = std::max(result.clock_uncertainty, clock.uncertainty());
    }

    using Interval = std::pair<Picoseconds, Picoseconds>;

    /// Begin and end of every operation. Attends of one launch have no times of their own: they share the launch's by
    /// the work of each, as far as that agrees with what they waited for and what waited for them.
    std::vector<Interval> intervals_of(const LocalRank& rank, const layouts::RankProgram& program,
                                       const PassEvents& events) const {
        const auto& clock = clocks_.at(rank.place.device);
        std::vector<Interval> intervals(program.operations);
        // By attend: when the first operation began that waited for it.
        std::vector<Picoseconds> awaited(program.operations, std::numeric_limits<Picoseconds>::max());
        for (std::size_t i = 0; i < program.operations; ++i) {
            const auto* launch = rank.work->launches(program.pass).find(i);
            const auto first = launch ? launch->attends.front() : i;
            intervals[i] = {clock.time(events.begin[first]), clock.time(events.end[first])};
            if (launch) continue;
            for (const auto before : program.code[i].op.after())
                awaited[index(static_cast<int>(before))] =
                    std::min(awaited[index(static_cast<int>(before))], intervals[i].first);
        }
        for (std::size_t i = 0; i < program.operations; ++i)
            if (const auto* launch = rank.work->launches(program.pass).find(i); launch && launch->attends.front() == i)
                share_out(program, launch->attends, awaited, intervals);
        return intervals;
    }

    static void share_out(const layouts::RankProgram& program, const std::vector<std::size_t>& attends,
                          const std::vector<Picoseconds>& awaited, std::vector<Interval>& intervals) {
        const auto work = [&](std::size_t attend) {
            const auto& op = program.code[attend].op;
            return static_cast<double>(op.cells) * op.rows().heads.count();
        };
        const auto [begin, end] = intervals[attends.front()];
        double all = 0, done = 0;
        for (const auto attend : attends) all += work(attend);
        std::vector<Picoseconds> latest(attends.size() + 1, end);  // that keeps the order of all that follow
        for (auto i = attends.size(); i-- > 0;) latest[i] = std::min(latest[i + 1], awaited[attends[i]]);
        auto now = begin;
        for (std::size_t i = 0; i < attends.size(); ++i) {
            done += work(attends[i]);
            for (const auto before : program.code[attends[i]].op.after())
                now = std::max(now, intervals[index(static_cast<int>(before))].second);
            now = std::min(now, latest[i]);
            const auto share = begin + static_cast<Picoseconds>(static_cast<double>(end - begin) * done / all);
            intervals[attends[i]] = {now, std::clamp(share, now, latest[i])};
            now = intervals[attends[i]].second;
        }
    }

    void collect(const LocalRank& rank, RankResult& result) const {
        const DeviceScope scope(rank.place.device);
        if (job_.options.keep_results) result.outputs = rank.work->memory().download();
        result.memory = rank.work->memory_use();
        device_name(rank.place.device).copy(result.device_name.data(), result.device_name.size() - 1);
    }

    void sample(int device, ClockSample::Moment moment) {
        if (const auto sample = job_.nvml.sample(device, moment)) samples_.push_back(*sample);
    }

    const Job& job_;
    Fabric& fabric_;
    int member_;
    std::vector<LocalRank> ranks_;
    std::map<int, std::unique_ptr<Stream>> compute_;  // by device
    std::map<int, DeviceClock> clocks_;               // by device
    std::optional<Issuer> issuer_;
    std::vector<ClockSample> samples_;
};

/// The parts of a result that are not vectors.
struct RankFacts {
    int global_rank;
    MemoryUse memory;
    Picoseconds clock_uncertainty;
    std::array<char, 256> device_name;
};

template <class Result, class Visit>
void for_each_vector(Result& result, Visit visit) {
    visit(result.outputs.o);
    visit(result.outputs.lse);
    visit(result.outputs.dq);
    visit(result.outputs.dk);
    visit(result.outputs.dv);
    for (auto& pass : result.passes) {
        visit(pass.start);
        visit(pass.finish);
        visit(pass.issue);
        visit(pass.timeline_start);
        visit(pass.spans);
    }
    visit(result.clocks);
}

void pack(const RankResult& result, Bytes& bytes) {
    append(bytes,
           std::vector{RankFacts{result.global_rank, result.memory, result.clock_uncertainty, result.device_name}});
    for_each_vector(result, [&](const auto& values) { append(bytes, values); });
}

RankResult unpack(std::span<const std::byte>& bytes) {
    RankResult result;
    std::vector<RankFacts> facts;
    take(bytes, facts);
    result.global_rank = facts.front().global_rank;
    result.memory = facts.front().memory;
    result.clock_uncertainty = facts.front().clock_uncertainty;
    result.device_name = facts.front().device_name;
    for_each_vector(result, [&](auto& values) { take(bytes, values); });
    return result;
}

/// All ranks' results by global rank, on the root process; nothing on others.
std::vector<RankResult> gather(Team& team, std::vector<RankResult> local, int world, Clock::duration timeout) {
    std::vector<RankResult> all(index(world));
    const auto keep = [&](RankResult&& result) { all[index(result.global_rank)] = std::move(result); };
    if (team.local_size() == team.size()) {
        for (auto& result : local) keep(std::move(result));
        return all;
    }
    Bytes bytes;
    for (const auto& result : local) pack(result, bytes);
    const auto gathered = team.gather_to_root(std::move(bytes), timeout);
    if (gathered.empty()) return {};
    for (const auto& from_process : gathered)
        for (std::span<const std::byte> rest(from_process); !rest.empty();) keep(unpack(rest));
    return all;
}

/// Writes a rank's rows to their global places.
void place_rows(const std::vector<float>& local, std::span<const std::int64_t> positions, HostTensor<float>& global) {
    const auto row = static_cast<std::size_t>(global.shape[2] * global.shape[3]);
    const auto* from = local.data();
    for (std::int64_t b = 0; b < global.shape[0]; ++b)
        for (const auto position : positions) {
            std::copy_n(from, row, global.values.data() + global.row(b, position));
            from += row;
        }
}

PassRun assemble_pass(int pass, const layouts::Program& program, std::span<RankResult* const> ranks) {
    const auto times = [&](const RankResult* rank) -> const PassTimes& { return rank->passes[index(pass)]; };
    const auto first_start = [&](const std::vector<Picoseconds> PassTimes::*starts, std::size_t i) {
        auto start = std::numeric_limits<Picoseconds>::max();
        for (const auto* rank : ranks) start = std::min(start, (times(rank).*starts)[i]);
        return start;
    };
    PassRun run;
    for (std::size_t repeat = 0; repeat < times(ranks.front()).start.size(); ++repeat) {
        const auto start = first_start(&PassTimes::start, repeat);
        auto& seconds = run.rank_seconds.emplace_back();
        auto& issue = run.issue_seconds.emplace_back();
        for (const auto* rank : ranks) {
            seconds.push_back(layouts::to_seconds(times(rank).finish[repeat] - start));
            issue.push_back(times(rank).issue[repeat]);
        }
    }
    const auto timelines = times(ranks.front()).timeline_start.size();
    for (std::size_t i = 0; i < timelines; ++i) {
        const auto start = first_start(&PassTimes::timeline_start, i);
        auto& timeline = run.timelines.emplace_back();
        timeline.ranks = static_cast<int>(ranks.size());
        for (const auto* rank : ranks) {
            const auto count = times(rank).spans.size() / timelines;
            for (std::size_t at = 0; at < count; ++at) {
                auto span = times(rank).spans[i * count + at];
                span.posted -= start;
                span.end -= start;
                timeline.spans.push_back(span);
            }
        }
        layouts::set_begins(timeline, program);
        for (auto& span : timeline.spans) span.busy = span.end - span.begin;
    }
    return run;
}

void place_results(const Job& job, std::span<RankResult* const> ranks, HostOutputs& out) {
    const auto& p = job.forward.problem();
    out.o = make_tensor<float>(p.batch, p.tokens, p.query_heads, p.value_dim);
    out.lse = make_tensor<float>(p.batch, p.tokens, p.query_heads, 1);
    if (job.backward) {
        out.dq = make_tensor<float>(p.batch, p.tokens, p.query_heads, p.head_dim);
        out.dk = make_tensor<float>(p.batch, p.tokens, p.kv_heads, p.head_dim);
        out.dv = make_tensor<float>(p.batch, p.tokens, p.kv_heads, p.value_dim);
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const auto& local = ranks[rank]->outputs;
        const auto positions = job.forward.layout().positions(static_cast<int>(rank));
        place_rows(local.o, positions, out.o);
        place_rows(local.lse, positions, out.lse);
        if (!job.backward) continue;
        place_rows(local.dq, positions, out.dq);
        place_rows(local.dk, positions, out.dk);
        place_rows(local.dv, positions, out.dv);
    }
}

GpuRun assemble(const Job& job, std::span<RankResult* const> ranks) {
    GpuRun run;
    if (job.options.keep_results) place_results(job, ranks, run.outputs);
    for (const auto* rank : ranks) {
        run.memory.push_back(rank->memory);
        run.devices.emplace_back(rank->device_name.data());
        run.clocks.insert(run.clocks.end(), rank->clocks.begin(), rank->clocks.end());
        run.clock_uncertainty = std::max(run.clock_uncertainty, layouts::to_seconds(rank->clock_uncertainty));
    }
    run.forward = assemble_pass(0, job.programs[0], ranks);
    if (job.backward) run.backward = assemble_pass(1, job.programs[1], ranks);
    return run;
}

FabricFactory fabric_factory(TransportKind kind) {
    return kind == TransportKind::nccl ? make_nccl_fabric : make_copy_fabric;
}

}  // namespace

std::vector<double> PassRun::seconds() const {
    std::vector<double> slowest;
    for (const auto& ranks : rank_seconds) slowest.push_back(*std::max_element(ranks.begin(), ranks.end()));
    return slowest;
}

int team_size(const GpuOptions& options) {
    return options.transport == TransportKind::loopback ? 1 : options.group.world();
}

std::vector<GpuRun> run(Team& team, const Schedule& forward, const Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options,
                        const FabricFactory& make_fabric) {
    const auto& group = options.group;
    require_pass(forward, Pass::forward);
    if (backward) {
        require_pass(*backward, Pass::backward);
        require_same_work(forward, *backward);
    }
    require(forward.ranks() == group.ring, "the schedule is for {} ranks, the rings have {}", forward.ranks(),
            group.ring);
    require(inputs.empty() || inputs.size() == index(group.replicas), "{} inputs were given for {} replicas",
            inputs.size(), group.replicas);
    require(options.repeats >= 1 && options.warm_up >= 0, "{} warm-up passes and {} repeats; there must be a repeat",
            options.warm_up, options.repeats);

    const Nvml nvml;
    Job job{team, forward, backward, inputs, options, {}, place_ranks(team, options), nvml};
    const bool served = options.transport == TransportKind::nccl;
    for (const auto* schedule : {&forward, backward}) {
        if (schedule)
            job.programs.push_back(
                layouts::resolve(*schedule, served ? layouts::Fetches::served : layouts::Fetches::one_sided));
    }
    PassPrograms programs;
    for (const auto& program : job.programs) programs.push_back(&program);

    const auto fabric = make_fabric(team, {group, options.timeout}, programs);
    require(fabric->fetches() != served, "the transport and its fabric disagree about who moves fetched blocks");
    // Here and not on their threads: after an error other members may still be using a member's memory.
    std::vector<std::unique_ptr<MemberRun>> members;
    for (int i = 0; i < team.local_size(); ++i)
        members.push_back(std::make_unique<MemberRun>(job, *fabric, team.first_local() + i));

    std::mutex mutex;
    std::vector<RankResult> results;
    team.run([&](int member) {
        auto& self = *members[index(member - team.first_local())];
        try {
            auto own = self.run();
            const std::lock_guard lock(mutex);
            std::move(own.begin(), own.end(), std::back_inserter(results));
        } catch (const Cancelled&) {
            self.abort();
            throw;
        } catch (const std::exception& error) {
            team.give_up(error.what());  // before the devices are let run dry: the others must stop as well for that
            self.abort();
            throw;
        }
    });
    auto all = gather(team, std::move(results), group.world(), patience_of(options));
    if (all.empty()) return {};

    std::vector<GpuRun> runs;
    for (int replica = 0; replica < group.replicas; ++replica) {
        std::vector<RankResult*> ranks;
        for (int rank = 0; rank < group.ring; ++rank) ranks.push_back(&all[index(group.global_rank(replica, rank))]);
        runs.push_back(assemble(job, ranks));
    }
    return runs;
}

std::vector<GpuRun> run(Team& team, const Schedule& forward, const Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options) {
    return run(team, forward, backward, inputs, options, fabric_factory(options.transport));
}

GpuRun run(const Schedule& forward, const Schedule* backward, const HostInputs& inputs, const GpuOptions& options) {
    const auto team = make_thread_team(team_size(options));
    return std::move(run(*team, forward, backward, std::span(&inputs, 1), options).front());
}

std::vector<DeviceInfo> devices() {
    int present = 0;
    if (cudaGetDeviceCount(&present) != cudaSuccess) {
        cudaGetLastError();
        return {};
    }
    std::vector<DeviceInfo> all;
    for (int device = 0; device < present; ++device) {
        cudaDeviceProp properties;
        RINGLAB_CUDA(cudaGetDeviceProperties(&properties, device));
        std::array<char, 32> bus_id{};
        RINGLAB_CUDA(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
        all.push_back({properties.name, bus_id.data(), properties.multiProcessorCount, properties.major,
                       properties.minor, static_cast<std::int64_t>(properties.totalGlobalMem)});
    }
    return all;
}

}  // namespace ringlab::gpu
