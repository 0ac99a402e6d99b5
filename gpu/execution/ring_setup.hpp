#pragma once

#include "gpu/ranks/rank.hpp"
#include "gpu/team/team.hpp"
#include "gpu/transports/transport.hpp"
#include "layouts/basics/ring_group.hpp"
#include "layouts/program/program.hpp"

#include <array>
#include <string>

// What rings need before their first pass, whoever runs it: executor.hpp, or ReadyRing.

namespace ringlab::gpu {

/// How bytes move between ranks. This decides which threads issue the work.
enum class TransportKind {
    loopback,  ///< copies; one thread issues all ranks, any number of which may share a GPU
    copy,      ///< copy engines with peer access; a thread or process per rank: one host
    nccl,      ///< NCCL send/recv; a thread or process per rank, each with a GPU of its own: any number of hosts
    mixed,     ///< copy inside a host, nccl between hosts
};

constexpr const char* to_string(TransportKind kind) {
    constexpr std::array names{"loopback", "copy", "nccl", "mixed"};
    return names.at(static_cast<std::size_t>(kind));
}

/// The kind with this name. Throws Error if there is none.
TransportKind transport_kind(const std::string& name);

/// The fabric of a transport. That of loopback is that of copy.
FabricFactory fabric_factory(TransportKind kind);

/// Between which ranks copies reach: all for copy and loopback, those of a host for mixed, none for nccl. All members
/// call it, where they are processes.
RankHosts reach_of_copies(TransportKind kind, Team& team, Clock::duration timeout);

/// The programs of schedules for ranks between which copies reach as `hosts` says. NCCL cannot read a peer's memory, so
/// the owners of fetched blocks send them if a ring has several hosts.
layouts::Program program_of(const layouts::Schedule& schedule, const layouts::RingGroup& group, const RankHosts& hosts);

/// How launches of a member's ranks start that wait for other ranks.
struct LaunchStart {
    FusedStart fused = FusedStart::all_arrived;
    int merging_ranks = 0;  ///< see RankOptions
};
/// Called by all members at the same time. `hosts`: see reach_of_copies().
LaunchStart launch_start(TransportKind transport, const RankHosts& hosts, const layouts::RingGroup& group, Team& team,
                         int member, int device, Clock::duration timeout);

/// Lets a forward pass with layouts::Schedule::is_one_launch() run as one launch, if all ranks can. Called by all
/// members at the same time, when their ranks have joined. A member of a ring of several ranks has one rank.
void connect_merging(Rank& rank, Transport& transport, const layouts::RingGroup& group, int replica, Team& team,
                     int member, Clock::duration timeout);

}  // namespace ringlab::gpu
