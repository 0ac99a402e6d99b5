#include "gpu/execution/member_run.hpp"

#include "gpu/device/steady.hpp"
#include "gpu/execution/issuer.hpp"
#include "gpu/team/device_clock.hpp"
#include "layouts/basics/counts.hpp"
#include "processes/peers.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>

namespace ringlab::gpu {

using layouts::Pass;
using processes::append;
using processes::take;

namespace {

class MemberOfThisProcess : public MemberRun {
public:
    MemberOfThisProcess(const Job& job, Fabric& fabric, int member) : job_(job), fabric_(fabric), member_(member) {
        for (const auto& seat : job.seats)
            if (seat.member == member) ranks_.push_back({seat, {}, {}, {}, {}, {}});
    }

    std::vector<RankResult> run() override {
        for (auto& rank : ranks_) set_up(rank);
        for (auto& rank : ranks_)
            if (job_.forward.is_one_launch() && (ranks_.size() == 1 || job_.options.group.ring == 1))
                connect_merging(*rank.work, *rank.transport, job_.options.group, replica(rank), job_.team, member_,
                                patience_of(job_.options));
        make_streams();
        for (const auto& [device, clock] : clocks_) sample(device, ClockSample::Moment::before);
        std::vector<RankResult> results(ranks_.size());
        for (std::size_t i = 0; i < ranks_.size(); ++i) results[i].global_rank = ranks_[i].seat.global_rank;
        for (int pass = 0; pass < job_.passes(); ++pass) run_pass(pass, results);
        for (const auto& [device, clock] : clocks_) sample(device, ClockSample::Moment::after);
        for (std::size_t i = 0; i < ranks_.size(); ++i) collect(ranks_[i], results[i]);
        results.front().clocks = samples_;
        // The first barrier: peers may still be reading this member's memory. The second: it is freed only after all
        // peers have released it.
        job_.team.barrier(member_, patience_of(job_.options));
        for (auto& rank : ranks_) {
            const DeviceScope scope(rank.seat.device);
            rank.transport->disconnect();
        }
        job_.team.barrier(member_, patience_of(job_.options));
        return results;
    }

    void abort() noexcept override {
        if (issuer_) issuer_->abort();
    }

private:
    struct LocalRank {
        Seat seat;
        std::unique_ptr<Rank> work;
        std::unique_ptr<Transport> transport;
        std::vector<std::unique_ptr<Stream>> lanes;  // those that the rank itself owns
        std::vector<cudaStream_t> lane_streams;
        std::vector<PassEvents> events;  // by repeat, of the pass that runs
    };

    static Pass which(int pass) { return pass == 0 ? Pass::forward : Pass::backward; }
    int replica(const LocalRank& rank) const { return job_.options.group.replica(rank.seat.global_rank); }
    int ring_rank(const LocalRank& rank) const { return job_.options.group.ring_rank(rank.seat.global_rank); }

    void set_up(LocalRank& rank) {
        RINGLAB_CUDA(cudaSetDevice(rank.seat.device));
        const auto& o = job_.options;
        std::vector<const layouts::Program*> programs;
        for (const auto& program : job_.programs) programs.push_back(&program);
        const MapOptions memory{.round_running_output = o.round_running_output,
                                .round_results = o.round_results,
                                .output_arrives = output_arrives(job_.programs.front()),
                                .arrival_flags = arrival_flags(job_.programs),
                                .merging_pairs = merging_pairs(job_.forward, job_.programs.front())};
        const auto maps = slot_maps(job_.forward, job_.backward, memory);
        const auto& own = maps[size(ring_rank(rank))];
        const auto start =
            launch_start(o.transport, job_.hosts, o.group, job_.team, member_, rank.seat.device, patience_of(o));
        rank.work =
            std::make_unique<Rank>(job_.forward, job_.backward, ring_rank(rank), programs, maps,
                                   make_exchange_memory(fabric_, own.bytes(), own.zeroed_bytes()),
                                   RankOptions{.memory = memory,
                                               .deterministic = o.deterministic,
                                               .check_finite = o.check_finite,
                                               .kernels = o.kernels,
                                               .fused_start = start.fused,
                                               .most_wait = o.timeout,
                                               .flagged_peers = flagged_peers(fabric_, o.group, rank.seat.global_rank),
                                               .merging_ranks = start.merging_ranks});
        rank.transport = fabric_.join({member_, rank.seat.global_rank, rank.seat.device, rank.work->exchange_memory()});
        load(rank);
        clocks_.try_emplace(rank.seat.device, job_.team);
    }

    void load(const LocalRank& rank) const {
        if (job_.inputs.empty())
            rank.work->load_random(rank.seat.global_rank);
        else
            rank.work->load(job_.inputs[size(replica(rank))]);
    }

    bool rotates() const { return job_.forward.problem().rotary.rotates(); }

    /// Rotates Q and K, loaded anew, before a forward pass, or dQ and dK after a backward pass. This is not a part of
    /// the pass: peers read K without a message, so all ranks must have rotated before any rank begins.
    void rotate(int pass) {
        if (which(pass) == Pass::forward) {
            job_.team.barrier(member_, patience_of(job_.options));  // a slow peer may still be reading K
            for (const auto& rank : ranks_) {
                const DeviceScope scope(rank.seat.device);
                load(rank);
            }
        }
        rotation_seconds_.clear();
        for (const auto& rank : ranks_) {
            const DeviceScope scope(rank.seat.device);
            const cudaStream_t stream = rank.lane_streams[static_cast<std::size_t>(layouts::compute_lane)];
            const Event begin(Event::Use::timing), end(Event::Use::timing);
            begin.record(stream);
            rank.work->rotate(which(pass), stream);
            end.record(stream);
            RINGLAB_CUDA(cudaStreamSynchronize(stream));
            rotation_seconds_.push_back(seconds_between(begin, end));
        }
    }

    void make_streams() {
        constexpr auto compute = static_cast<std::size_t>(layouts::compute_lane);
        std::vector<IssuedRank> issued;
        for (auto& rank : ranks_) {
            int lanes = 1;
            for (const auto& program : job_.programs) lanes = std::max(lanes, program.lanes);
            rank.lanes.resize(size(lanes));
            rank.lane_streams.resize(size(lanes));
            RINGLAB_CUDA(cudaSetDevice(rank.seat.device));
            auto& shared = compute_[rank.seat.device];
            if (!shared) shared = std::make_unique<Stream>();
            for (std::size_t lane = 0; lane < rank.lanes.size(); ++lane) {
                const bool used = std::ranges::any_of(job_.programs, [&](const layouts::Program& program) {
                    return program.ranks[size(ring_rank(rank))].uses(static_cast<layouts::Lane>(lane));
                });
                if (lane != compute && used) rank.lanes[lane] = std::make_unique<Stream>(Stream::Use::transfers);
                if (lane == compute)
                    rank.lane_streams[lane] = *shared;
                else if (used)
                    rank.lane_streams[lane] = *rank.lanes[lane];
            }
            issued.push_back({ring_rank(rank), replica(rank), rank.seat.global_rank, rank.seat.device, rank.work.get(),
                              rank.transport.get(), rank.lane_streams});
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
            for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
                auto& times = results[rank].passes[size(pass)];
                times.issue.push_back(std::chrono::duration<double>(issuer_->issue_time()).count());
                if (rotates()) times.rotation.push_back(rotation_seconds_[rank]);
            }
        }
        const auto repeats = ranks_.front().events.size();
        constexpr int extra_passes = 5;
        if (options.timelines == Timelines::extra)
            for (int i = 0; i < extra_passes; ++i) run_once(pass, true, [] {});
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
                const DeviceScope scope(rank.seat.device);
                unwanted.emplace_back(rank.work->program(Pass::forward).code.size(), PassEvents::Use::pass);
            }
            std::vector<PassEvents*> events;
            for (auto& one : unwanted) events.push_back(&one);
            if (rotates()) rotate(0);
            issue(0, events, [] {});
        }
        std::vector<PassEvents*> events;
        for (auto& rank : ranks_) {
            const DeviceScope scope(rank.seat.device);
            const auto& program = rank.work->program(which(pass));
            events.push_back(&rank.events.emplace_back(program.code.size(),
                                                       timeline ? PassEvents::Use::timeline : PassEvents::Use::pass));
            if (!options.poison) continue;
            const auto stream = rank.lane_streams[static_cast<std::size_t>(layouts::compute_lane)];
            rank.work->memory().poison(which(pass), stream);
            RINGLAB_CUDA(cudaStreamSynchronize(stream));
        }
        if (rotates() && pass == 0) rotate(pass);
        issue(pass, events, underway);
        if (options.check_finite) require_finite(pass);
        if (rotates() && pass == 1) rotate(pass);
        return seconds_between(events.front()->start, events.front()->finish);
    }

    void issue(int pass, const std::vector<PassEvents*>& events, const std::function<void()>& underway) {
        issuer_->prepare(which(pass), events);
        job_.team.start_together(member_, patience_of(job_.options));
        issuer_->run(underway);
    }

    /// The answer of the first member, for all members.
    bool agree(bool first_says) {
        if (job_.team.size() == 1) return first_says;
        return job_.team.all_gather(member_, {std::byte{first_says}}, patience_of(job_.options)).front().front() !=
               std::byte{0};
    }

    /// Throws the same error on all members if any rank has found a value that is not finite: the one of the earliest
    /// step.
    void require_finite(int pass) {
        std::optional<NotFinite> first;
        const auto keep_earlier = [&](NotFinite found) {
            if (!first || found.step < first->step) first = std::move(found);
        };
        for (const auto& rank : ranks_) {
            const DeviceScope scope(rank.seat.device);
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
        const DeviceScope scope(rank.seat.device);
        const auto& clock = clocks_.at(rank.seat.device);
        auto& times = result.passes[size(pass)];
        for (std::size_t repeat = 0; repeat < rank.events.size(); ++repeat) {
            const auto& events = rank.events[repeat];
            if (repeat < repeats) {
                times.start.push_back(clock.time(events.start));
                times.finish.push_back(clock.time(events.finish));
            }
            const auto timelines = job_.options.timelines;
            if (timelines == Timelines::none || (timelines == Timelines::extra && repeat < repeats)) continue;
            times.timeline_start.push_back(clock.time(events.start));
            for (auto& span : spans_of(*rank.work, which(pass), ring_rank(rank), events, clock))
                times.spans.push_back(std::move(span));
        }
        result.clock_uncertainty = std::max(result.clock_uncertainty, clock.uncertainty());
    }

    void collect(const LocalRank& rank, RankResult& result) const {
        const DeviceScope scope(rank.seat.device);
        if (job_.options.keep_results) result.outputs = rank.work->download();
        result.memory = rank.work->memory_use();
        device_name(rank.seat.device).copy(result.device_name.data(), result.device_name.size() - 1);
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
    std::vector<double> rotation_seconds_;  // by rank, of the pass that ran last
};

}  // namespace

namespace {

/// Whether each launch waits for the end of its kernel, as people who look for an error ask CUDA to.
bool launches_block() {
    const char* const given = std::getenv("CUDA_LAUNCH_BLOCKING");
    return given && std::string_view(given) != "" && std::string_view(given) != "0";
}

}  // namespace

/// A launch may occupy a device while it waits for copies from other devices. It must not occupy it while it waits for
/// something that needs this device: NCCL's kernels, launches of other ranks, copies inside the device.
LaunchStart launch_start(TransportKind transport, const RankHosts& hosts, const layouts::RingGroup& group, Team& team,
                         int member, int device, Clock::duration timeout) {
    const int alone = group.ring == 1 ? 1 : 0;  // such a rank waits for nobody
    const bool over_nccl = !alone && (transport == TransportKind::nccl || hosts.split_a_ring(group));
    team.together(member, timeout, [&] {
        require(!over_nccl || !launches_block(),
                "CUDA_LAUNCH_BLOCKING is set, but a message over NCCL is a launch that waits for another rank's; unset "
                "it, or use copy engines on one host");
    });
    if (hosts.split_a_ring(group)) return {FusedStart::local_before, alone};
    if (transport == TransportKind::loopback) return {FusedStart::all_arrived, alone};
    std::array<char, 32> bus_id{};
    RINGLAB_CUDA(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
    Bytes own;
    append(own, std::vector<char>(bus_id.begin(), bus_id.end()));
    const auto all = team.all_gather(member, own, timeout);
    int sharing = 0;
    for (std::size_t other = 0; other < all.size(); ++other)  // hosts may number their GPUs alike
        sharing += all[other] == own && hosts.share(member, static_cast<int>(other));
    // A launch that blocks its host must not wait for what the host enqueues afterwards.
    return {sharing > 1 || launches_block() ? FusedStart::all_arrived : FusedStart::at_once, sharing};
}

void connect_merging(Rank& rank, Transport& transport, const layouts::RingGroup& group, int replica, Team& team,
                     int member, Clock::duration timeout) {
    auto* merging = rank.merging(Pass::forward);
    bool can = merging && merging->is_possible();
    const auto memory_of = [&](int peer) { return transport.memory_of(group.global_rank(replica, peer)); };
    for (int peer = 0; can && peer < group.ring; ++peer) can = memory_of(peer) != nullptr;
    if (group.ring == 1) {
        if (can) merging->connect(memory_of);
        return;
    }
    const auto all = team.all_gather(member, {std::byte{can}}, timeout);
    const bool all_can = std::ranges::all_of(all, [](const Bytes& one) { return one.front() != std::byte{0}; });
    if (all_can) merging->connect(memory_of);
}

std::string device_name(int device) {
    cudaDeviceProp properties;
    RINGLAB_CUDA(cudaGetDeviceProperties(&properties, device));
    return properties.name;
}

std::unique_ptr<MemberRun> make_member_run(const Job& job, Fabric& fabric, int member) {
    return std::make_unique<MemberOfThisProcess>(job, fabric, member);
}

}  // namespace ringlab::gpu
