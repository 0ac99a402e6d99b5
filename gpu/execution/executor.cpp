#include "gpu/execution/executor.hpp"

#include "gpu/device/steady.hpp"
#include "gpu/execution/issuer.hpp"
#include "gpu/execution/results.hpp"
#include "gpu/team/device_clock.hpp"
#include "layouts/basics/counts.hpp"
#include "processes/session.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

namespace ringlab::gpu {
namespace {

using layouts::Pass;
using layouts::Schedule;
using layouts::Timelines;

void require_pass(const Schedule& schedule, Pass pass) {
    require(schedule.options().pass == pass, "expected a {} schedule, got a {} one", to_string(pass),
            to_string(schedule.options().pass));
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

/// The devices of the ranks that members of this process issue, by global rank.
std::map<int, int> devices_of_ranks(const Team& team, const GpuOptions& options) {
    const int world = options.group.world();
    const auto devices = chosen_devices(options);
    const auto device_of = [&](int place) { return devices[size(place) % devices.size()]; };
    std::map<int, int> found;
    if (options.transport == TransportKind::loopback) {
        require(team.size() == 1, "the loopback transport is for one issuing thread, there are {}", team.size());
        for (int rank = 0; rank < world; ++rank) found[rank] = device_of(rank);
        return found;
    }
    require(team.size() == world, "{} ranks need {} threads or processes with the {} transport, there are {}", world,
            world, to_string(options.transport), team.size());
    const bool one_process = team.local_size() == team.size();
    const int on_host = one_process ? 0 : processes::Session::current().rank_on_host();
    require(!one_process || static_cast<int>(devices.size()) >= world,
            "{} ranks need a GPU each with the {} transport, there are {}; the loopback transport shares GPUs", world,
            to_string(options.transport), devices.size());
    std::set<int> distinct;
    for (int rank = team.first_local(); rank < team.first_local() + team.local_size(); ++rank)
        distinct.insert(found[rank] = device_of(one_process ? rank : on_host));
    const bool may_use_nccl = options.transport == TransportKind::nccl || options.transport == TransportKind::mixed;
    require(!may_use_nccl || distinct.size() == found.size(), "NCCL needs a GPU of its own for each of {} ranks",
            world);
    return found;
}

/// One member of the team: the ranks that its thread issues, from allocation to results.
class Member {
public:
    /// Both references must outlive it. `devices`: of ranks of this process.
    Member(const Job& job, Fabric& fabric, int member, const std::map<int, int>& devices)
        : job_(job), options_(job.options), fabric_(fabric), member_(member) {
        for (const auto& [rank, device] : devices)
            if (options_.transport == TransportKind::loopback || rank == member) ranks_.push_back({rank, device});
    }

    /// Called on the member's own thread.
    std::vector<RankResult> run() {
        for (auto& rank : ranks_) set_up(rank);
        for (auto& rank : ranks_)
            if (job_.forward.is_one_launch() && (ranks_.size() == 1 || options_.group.ring == 1))
                connect_merging(*rank.work, *rank.transport, options_.group, replica(rank), job_.team, member_,
                                patience_);
        make_streams();
        sample_clocks(ClockSample::Moment::before);
        std::vector<RankResult> results(ranks_.size());
        run_pass(Pass::forward, results);
        if (job_.backward) run_pass(Pass::backward, results);
        sample_clocks(ClockSample::Moment::after);
        for (std::size_t i = 0; i < ranks_.size(); ++i) collect(ranks_[i], results[i]);
        results.front().clocks = samples_;
        // The first barrier: peers may still be reading this member's memory. The second: it is freed only after all
        // peers have released it.
        job_.team.barrier(member_, patience_);
        for (auto& rank : ranks_) {
            const DeviceScope scope(rank.device);
            rank.transport->disconnect();
        }
        job_.team.barrier(member_, patience_);
        return results;
    }

    /// After a failure, on the member's own thread: ends everything that the member has running.
    void abort() noexcept {
        if (issuer_) issuer_->abort();
    }

private:
    struct LocalRank {
        int global_rank, device;
        std::unique_ptr<Rank> work = {};
        std::unique_ptr<Transport> transport = {};
        std::vector<Stream> own_streams = {};
        std::vector<cudaStream_t> lanes = {};
        std::vector<PassEvents> events = {};  // by repeat, of the pass that runs

        cudaStream_t compute() const { return lanes[size(layouts::compute_lane)]; }
    };

    int replica(const LocalRank& rank) const { return options_.group.replica(rank.global_rank); }
    int ring_rank(const LocalRank& rank) const { return options_.group.ring_rank(rank.global_rank); }

    void set_up(LocalRank& rank) {
        RINGLAB_CUDA(cudaSetDevice(rank.device));
        const auto& o = options_;
        const MapOptions memory{.round_running_output = o.round_running_output,
                                .round_results = o.round_results,
                                .output_arrives = output_arrives(job_.programs.front()),
                                .arrival_flags = arrival_flags(job_.programs),
                                .merging_pairs = merging_pairs(job_.forward, job_.programs.front())};
        const auto maps = slot_maps(job_.forward, job_.backward, memory);
        const auto& own = maps[size(ring_rank(rank))];
        const auto start = launch_start(o.transport, job_.hosts, o.group, job_.team, member_, rank.device, patience_);
        rank.work =
            std::make_unique<Rank>(job_.forward, job_.backward, ring_rank(rank), job_.programs, maps,
                                   make_exchange_memory(fabric_, own.bytes(), own.zeroed_bytes()),
                                   RankOptions{.memory = memory,
                                               .deterministic = o.deterministic,
                                               .kernels = o.kernels,
                                               .fused_start = start.fused,
                                               .most_wait = o.timeout,
                                               .flagged_peers = flagged_peers(fabric_, o.group, rank.global_rank),
                                               .merging_ranks = start.merging_ranks});
        rank.transport =
            fabric_.join({member_, rank.global_rank, rank.device, {rank.work->memory().data(), own.bytes()}});
        load(rank);
        clocks_.try_emplace(rank.device, job_.team);
    }

    void load(const LocalRank& rank) const {
        if (job_.inputs.empty())
            rank.work->load_random(rank.global_rank);
        else
            rank.work->load(job_.inputs[size(replica(rank))]);
    }

    bool rotates() const { return job_.forward.problem().rotary.rotates(); }

    /// Rotates Q and K, loaded anew, before a forward pass, or dQ and dK after a backward pass. This is not a part of
    /// the pass: peers read K without a message, so all ranks must have rotated before any rank begins.
    void rotate(Pass pass) {
        if (pass == Pass::forward) {
            job_.team.barrier(member_, patience_);  // a slow peer may still be reading K
            for (const auto& rank : ranks_) {
                const DeviceScope scope(rank.device);
                load(rank);
            }
        }
        rotation_seconds_.clear();
        for (const auto& rank : ranks_) {
            const DeviceScope scope(rank.device);
            const Event begin(Event::Use::timing), end(Event::Use::timing);
            begin.record(rank.compute());
            rank.work->rotate(pass, rank.compute());
            end.record(rank.compute());
            RINGLAB_CUDA(cudaStreamSynchronize(rank.compute()));
            rotation_seconds_.push_back(seconds_between(begin, end));
        }
    }

    void make_streams() {
        int lanes = 1;
        for (const auto& program : job_.programs) lanes = std::max(lanes, program.lanes);
        std::vector<IssuedRank> issued;
        for (auto& rank : ranks_) {
            RINGLAB_CUDA(cudaSetDevice(rank.device));
            rank.lanes.push_back(compute_.try_emplace(rank.device).first->second);
            for (int lane = 1; lane < lanes; ++lane) {
                const bool used = std::ranges::any_of(job_.programs, [&](const layouts::Program& program) {
                    return program.ranks[size(ring_rank(rank))].uses(lane);
                });
                rank.lanes.push_back(used ? rank.own_streams.emplace_back(Stream::Use::transfers) : cudaStream_t{});
            }
            issued.push_back({ring_rank(rank), replica(rank), rank.global_rank, rank.device, rank.work.get(),
                              rank.transport.get(), rank.lanes});
        }
        issuer_.emplace(std::move(issued), job_.team, Issuer::Options{options_.group, options_.timeout});
    }

    void anchor_clocks() {
        for (auto& [device, clock] : clocks_) {
            const DeviceScope scope(device);
            clock.anchor(compute_.at(device));
        }
    }

    void run_pass(Pass pass, std::vector<RankResult>& results) {
        for (auto& [device, clock] : clocks_) clock = DeviceClock(job_.team);
        for (auto& rank : ranks_) rank.events.clear();
        warm_up(pass);
        anchor_clocks();
        double spent = 0;
        constexpr int most_repeats = 200;
        for (int i = 0; i < options_.repeats || (i < most_repeats && !agree(spent >= options_.repeat_seconds)); ++i) {
            spent += run_once(pass, options_.timelines == Timelines::all,
                              [&] { sample_clocks(ClockSample::Moment::during); });
            for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
                auto& times = results[rank].of(pass);
                times.issue.push_back(std::chrono::duration<double>(issuer_->issue_time()).count());
                if (rotates()) times.rotation.push_back(rotation_seconds_[rank]);
            }
        }
        const auto repeats = ranks_.front().events.size();
        constexpr int extra_passes = 5;
        if (options_.timelines == Timelines::extra)
            for (int i = 0; i < extra_passes; ++i) run_once(pass, true, [] {});
        anchor_clocks();
        for (std::size_t i = 0; i < ranks_.size(); ++i) note_times(ranks_[i], pass, repeats, results[i]);
    }

    void warm_up(Pass pass) {
        Steady steady(options_.warm_up_seconds);
        for (int i = 0; i < options_.warm_up || (options_.warm_up_seconds > 0 && !agree(steady.reached())); ++i) {
            steady.add(run_once(pass, false, [] {}));
            for (auto& rank : ranks_) rank.events.clear();
        }
    }

    /// One pass of all ranks; its events are appended to theirs. Returns the first rank's device time, in seconds.
    double run_once(Pass pass, bool timeline, const std::function<void()>& underway) {
        if (pass == Pass::backward && ranks_.front().work->backward_overwrites_output()) {
            std::vector<PassEvents> unwanted;
            for (const auto& rank : ranks_) {
                const DeviceScope scope(rank.device);
                unwanted.emplace_back(rank.work->program(Pass::forward).code.size(), PassEvents::Use::pass);
            }
            std::vector<PassEvents*> events;
            for (auto& one : unwanted) events.push_back(&one);
            if (rotates()) rotate(Pass::forward);
            issue(Pass::forward, events, [] {});
        }
        std::vector<PassEvents*> events;
        for (auto& rank : ranks_) {
            const DeviceScope scope(rank.device);
            events.push_back(&rank.events.emplace_back(rank.work->program(pass).code.size(),
                                                       timeline ? PassEvents::Use::timeline : PassEvents::Use::pass));
            if (!options_.poison) continue;
            rank.work->memory().poison(pass, rank.compute());
            RINGLAB_CUDA(cudaStreamSynchronize(rank.compute()));
        }
        if (rotates() && pass == Pass::forward) rotate(pass);
        issue(pass, events, underway);
        if (rotates() && pass == Pass::backward) rotate(pass);
        return seconds_between(events.front()->start, events.front()->finish);
    }

    void issue(Pass pass, const std::vector<PassEvents*>& events, const std::function<void()>& underway) {
        issuer_->prepare(pass, events);
        job_.team.start_together(member_, patience_);
        issuer_->enqueue();
        underway();
        issuer_->wait();
    }

    /// The answer of the first member, for all members.
    bool agree(bool first_says) {
        if (job_.team.size() == 1) return first_says;
        return job_.team.all_gather(member_, {std::byte{first_says}}, patience_).front().front() != std::byte{0};
    }

    /// The first `repeats` of a rank's events are timed passes.
    void note_times(const LocalRank& rank, Pass pass, std::size_t repeats, RankResult& result) const {
        const DeviceScope scope(rank.device);
        const auto& clock = clocks_.at(rank.device);
        auto& times = result.of(pass);
        for (std::size_t repeat = 0; repeat < rank.events.size(); ++repeat) {
            const auto& events = rank.events[repeat];
            if (repeat < repeats) {
                times.start.push_back(clock.time(events.start));
                times.finish.push_back(clock.time(events.finish));
            }
            const auto timelines = options_.timelines;
            if (timelines == Timelines::none || (timelines == Timelines::extra && repeat < repeats)) continue;
            times.timeline_start.push_back(clock.time(events.start));
            for (auto& span : spans_of(*rank.work, pass, ring_rank(rank), events, clock))
                times.spans.push_back(std::move(span));
        }
        result.clock_uncertainty = std::max(result.clock_uncertainty, clock.uncertainty());
    }

    void collect(const LocalRank& rank, RankResult& result) const {
        const DeviceScope scope(rank.device);
        result.global_rank = rank.global_rank;
        std::size_t all_bytes = 0;
        RINGLAB_CUDA(cudaMemGetInfo(&result.free_bytes, &all_bytes));
        if (options_.keep_results) result.outputs = rank.work->download();
        result.memory = rank.work->memory_use();
        cudaDeviceProp properties;
        RINGLAB_CUDA(cudaGetDeviceProperties(&properties, rank.device));
        std::string_view(properties.name).copy(result.device_name.data(), result.device_name.size() - 1);
    }

    void sample_clocks(ClockSample::Moment moment) {
        for (const auto& [device, clock] : clocks_)
            if (const auto sample = job_.nvml.sample(device, moment)) samples_.push_back(*sample);
    }

    const Job& job_;
    const GpuOptions& options_;
    Fabric& fabric_;
    const int member_;
    /// How long it waits for the others where all meet. It is longer than any other time-out, because a member that is
    /// stuck in an operation knows more about the cause and should report first.
    const Clock::duration patience_ = 2 * options_.timeout;
    std::vector<LocalRank> ranks_;
    std::map<int, Stream> compute_;      // by device
    std::map<int, DeviceClock> clocks_;  // by device
    std::optional<Issuer> issuer_;
    std::vector<ClockSample> samples_;
    std::vector<double> rotation_seconds_;  // by rank, of the pass that ran last
};

}  // namespace

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
        require_same_problem(forward, *backward);
    }
    require(forward.ranks() == group.ring, "the schedule is for {} ranks, but the rings have {}", forward.ranks(),
            group.ring);
    require(inputs.empty() || inputs.size() == size(group.replicas), "{} inputs were given for {} replicas",
            inputs.size(), group.replicas);
    require(options.repeats >= 1 && options.warm_up >= 0, "{} warm-up passes and {} repeats; there must be a repeat",
            options.warm_up, options.repeats);

    static const Nvml nvml;  // starting it takes longer than a short run
    const auto devices = devices_of_ranks(team, options);
    Job job{team, forward, backward, inputs, options, nvml, reach_of_copies(options.transport, team, options.timeout)};
    for (const auto* schedule : {&forward, backward})
        if (schedule) job.programs.push_back(program_of(*schedule, group, job.hosts));
    const auto fabric = (make_fabric ? make_fabric : fabric_factory(options.transport))(
        team, {group, options.timeout, job.hosts}, routes_of(group, job.programs));
    // Members are made here and not on their threads, because after an error other members may still use a member's
    // memory.
    std::vector<std::unique_ptr<Member>> members;
    for (int i = 0; i < team.local_size(); ++i)
        members.push_back(std::make_unique<Member>(job, *fabric, team.first_local() + i, devices));

    std::mutex mutex;
    std::vector<RankResult> results;
    team.run([&](int member) {
        auto& self = *members[size(member - team.first_local())];
        try {
            auto own = self.run();
            const std::lock_guard lock(mutex);
            std::move(own.begin(), own.end(), std::back_inserter(results));
        } catch (const Cancelled&) {
            self.abort();
            throw;
        } catch (const std::exception& error) {
            team.give_up(error.what());  // first, because abort() waits for work that needs the others to stop too
            self.abort();
            throw;
        }
    });
    auto all = gather(team, std::move(results), group.world(), 2 * options.timeout);
    if (all.empty()) return {};

    std::vector<GpuRun> runs;
    for (int replica = 0; replica < group.replicas; ++replica) {
        std::vector<RankResult*> ranks;
        for (int rank = 0; rank < group.ring; ++rank) ranks.push_back(&all[size(group.global_rank(replica, rank))]);
        runs.push_back(assemble(job, ranks));
    }
    return runs;
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
        all.push_back({properties.name, bus_id_of(device), properties.multiProcessorCount});
    }
    return all;
}

}  // namespace ringlab::gpu
