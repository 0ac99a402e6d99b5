#include "gpu/execution/executor.hpp"

#include "gpu/execution/member_run.hpp"
#include "layouts/basics/counts.hpp"
#include "layouts/program/deadlock_check.hpp"
#include "layouts/schedules/schedule.hpp"
#include "processes/session.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>

namespace ringlab::gpu {
namespace {

using layouts::Pass;
using layouts::Schedule;

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

std::vector<Seat> seat_ranks(const Team& team, const GpuOptions& options) {
    const int world = options.group.world();
    const auto devices = chosen_devices(options);
    const auto device_of = [&](int place) { return devices[size(place) % devices.size()]; };
    std::vector<Seat> seats;
    if (options.transport == TransportKind::loopback) {
        require(team.size() == 1, "the loopback transport is for one issuing thread, there are {}", team.size());
        for (int rank = 0; rank < world; ++rank) seats.push_back({rank, 0, device_of(rank)});
        return seats;
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
        seats.push_back({rank, rank, local ? device_of(one_process ? rank : on_host) : -1});
    }
    const bool may_use_nccl = options.transport == TransportKind::nccl || options.transport == TransportKind::mixed;
    if (may_use_nccl && one_process) {
        std::set<int> distinct;
        for (const auto& seat : seats) distinct.insert(seat.device);
        require(static_cast<int>(distinct.size()) == world, "NCCL needs a GPU of its own for each of {} ranks", world);
    }
    return seats;
}

}  // namespace

TransportKind transport_kind(const std::string& name) {
    using enum TransportKind;
    for (const auto kind : {loopback, copy, nccl, mixed})
        if (name == to_string(kind)) return kind;
    fail("'{}' is no transport; known: loopback, copy, nccl, mixed", name);
}

FabricFactory fabric_factory(TransportKind kind) {
    switch (kind) {
        case TransportKind::nccl: return make_nccl_fabric;
        case TransportKind::copy:
        case TransportKind::loopback: return make_copy_fabric;
        case TransportKind::mixed:
            return [](Team& team, const FabricOptions& options, const Routes& routes) {
                return make_mixed_fabric(team, options, routes);
            };
    }
    fail("no fabric of transport {}", static_cast<int>(kind));
}

RankHosts reach_of_copies(TransportKind kind, Team& team, Clock::duration timeout) {
    if (kind == TransportKind::nccl) return RankHosts::apart(team.size());
    return kind == TransportKind::mixed ? RankHosts::of_team(team, timeout) : RankHosts();
}

layouts::Program program_of(const Schedule& schedule, const layouts::RingGroup& group, const RankHosts& hosts) {
    const bool over_hosts = hosts.split_a_ring(group);
    auto program = layouts::resolve(schedule, over_hosts ? layouts::Fetches::served : layouts::Fetches::one_sided);
    // A message kernel gets SMs when thread blocks of an attend end. In a backward pass they end now and then. In a
    // forward pass they take one work tile after another, so a message should begin before the attend does:
    // only backward passes are paced.
    const auto is_kernel = [&](int rank, int peer) {
        for (int replica = 0; replica < group.replicas; ++replica)
            if (!hosts.share(group.global_rank(replica, rank), group.global_rank(replica, peer))) return true;
        return false;
    };
    if (program.pass == Pass::backward && over_hosts) layouts::pace_messages(program, is_kernel);
    return program;
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
        require_same_problem(forward, *backward);
    }
    require(forward.ranks() == group.ring, "the schedule is for {} ranks, but the rings have {}", forward.ranks(),
            group.ring);
    require(inputs.empty() || inputs.size() == size(group.replicas), "{} inputs were given for {} replicas",
            inputs.size(), group.replicas);
    require(options.repeats >= 1 && options.warm_up >= 0, "{} warm-up passes and {} repeats; there must be a repeat",
            options.warm_up, options.repeats);

    const Nvml nvml;
    Job job{team, forward, backward, inputs, options, {}, seat_ranks(team, options), nvml, {}};
    job.hosts = reach_of_copies(options.transport, team, options.timeout);
    for (const auto* schedule : {&forward, backward})
        if (schedule) job.programs.push_back(program_of(*schedule, group, job.hosts));
    const auto fabric = make_fabric(team, {group, options.timeout, job.hosts}, routes_of(group, job.programs));
    // Members are made here and not on their threads, because after an error other members may still use a member's
    // memory.
    std::vector<std::unique_ptr<MemberRun>> members;
    for (int i = 0; i < team.local_size(); ++i)
        members.push_back(make_member_run(job, *fabric, team.first_local() + i));

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
    auto all = gather(team, std::move(results), group.world(), patience_of(options));
    if (all.empty()) return {};

    std::vector<GpuRun> runs;
    for (int replica = 0; replica < group.replicas; ++replica) {
        std::vector<RankResult*> ranks;
        for (int rank = 0; rank < group.ring; ++rank) ranks.push_back(&all[size(group.global_rank(replica, rank))]);
        runs.push_back(assemble(job, ranks));
    }
    return runs;
}

std::vector<GpuRun> run(Team& team, const Schedule& forward, const Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options) {
    return run(team, forward, backward, inputs, options, fabric_factory(options.transport));
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
