#pragma once

#include "gpu/execution/results.hpp"
#include "gpu/ranks/fused_launches.hpp"
#include "gpu/transports/transport.hpp"

#include <memory>
#include <vector>

namespace ringlab::gpu {

/// One member of the team: the ranks that its thread issues, from allocation to results.
class MemberRun {
public:
    virtual ~MemberRun() = default;

    /// Called on the member's own thread.
    virtual std::vector<RankResult> run() = 0;

    /// After a failure, on the member's own thread: ends everything that the member has running.
    virtual void abort() noexcept = 0;
};

/// The run of member number `member` of the job's team. Both references must outlive it.
std::unique_ptr<MemberRun> make_member_run(const Job& job, Fabric& fabric, int member);

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

/// The device's name, as CUDA reports it.
std::string device_name(int device);

}  // namespace ringlab::gpu
