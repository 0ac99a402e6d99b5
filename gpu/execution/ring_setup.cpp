#include "gpu/execution/ring_setup.hpp"

#include "layouts/program/deadlock_check.hpp"
#include "processes/peers.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace ringlab::gpu {
namespace {

/// Whether each launch waits for the end of its kernel, as people who look for an error ask CUDA to.
bool launches_block() {
    const char* const given = std::getenv("CUDA_LAUNCH_BLOCKING");
    return given && std::string_view(given) != "" && std::string_view(given) != "0";
}

}  // namespace

TransportKind transport_kind(const std::string& name) {
    using enum TransportKind;
    for (const auto kind : {loopback, copy, nccl, mixed})
        if (name == to_string(kind)) return kind;
    fail("'{}' is no transport; known: loopback, copy, nccl, mixed", name);
}

FabricFactory fabric_factory(TransportKind kind) {
    if (kind == TransportKind::nccl) return make_nccl_fabric;
    if (kind != TransportKind::mixed) return make_copy_fabric;
    return [](Team& team, const FabricOptions& options, const Routes& routes) {
        return make_mixed_fabric(team, options, routes);
    };
}

RankHosts reach_of_copies(TransportKind kind, Team& team, Clock::duration timeout) {
    if (kind == TransportKind::nccl) return RankHosts::apart(team.size());
    return kind == TransportKind::mixed ? RankHosts::of_team(team, timeout) : RankHosts();
}

layouts::Program program_of(const layouts::Schedule& schedule, const layouts::RingGroup& group,
                            const RankHosts& hosts) {
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
    if (program.pass == layouts::Pass::backward && over_hosts) layouts::pace_messages(program, is_kernel);
    return program;
}

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
    const auto bus_id = bus_id_of(device);
    Bytes own;
    processes::append(own, std::vector<char>(bus_id.begin(), bus_id.end()));
    const auto all = team.all_gather(member, own, timeout);
    int sharing = 0;
    for (std::size_t other = 0; other < all.size(); ++other)  // hosts may number their GPUs alike
        sharing += all[other] == own && hosts.share(member, static_cast<int>(other));
    // A launch that blocks its host must not wait for what the host enqueues afterwards.
    return {sharing > 1 || launches_block() ? FusedStart::all_arrived : FusedStart::at_once, sharing};
}

void connect_merging(Rank& rank, Transport& transport, const layouts::RingGroup& group, int replica, Team& team,
                     int member, Clock::duration timeout) {
    auto* merging = rank.merging(layouts::Pass::forward);
    bool can = merging && merging->is_possible();
    const auto memory_of = [&](int peer) { return transport.memory_of(group.global_rank(replica, peer)); };
    for (int peer = 0; can && peer < group.ring; ++peer) can = memory_of(peer) != nullptr;
    if (group.ring > 1)
        can = std::ranges::all_of(team.all_gather(member, {std::byte{can}}, timeout),
                                  [](const Bytes& one) { return one.front() != std::byte{0}; });
    if (can) merging->connect(memory_of);
}

}  // namespace ringlab::gpu
