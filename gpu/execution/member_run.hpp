#pragma once

#include "gpu/execution/results.hpp"
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

    /// After a failure, on the member's own thread: nothing of it is left running.
    virtual void abort() noexcept = 0;
};

std::unique_ptr<MemberRun> make_member_run(const Job& job, Fabric& fabric, int member);

/// As CUDA names it.
std::string device_name(int device);

}  // namespace ringlab::gpu
