#pragma once

#include "gpu/kernels/joined_work.hpp"
#include "gpu/ranks/rank_memory.hpp"

#include <chrono>
#include <map>

namespace ringlab::gpu {

/// When a fused launch of several attends starts, and whether it waits inside the kernel for blocks that have not
/// arrived.
enum class JoinedWaits {
    inside,  ///< the launch begins at once and waits for each block before it reads it. Only where nothing that brings
             ///< blocks needs multiprocessors of this device: the launch may hold all of them
    before,  ///< the launch begins when all has arrived
    apart,   ///< as before, but what is there from the start has a launch of its own ahead
};

/// Of an attend of these query heads to these kv heads.
AttendShape attend_shape(const layouts::Problem& problem, layouts::HeadRange rows, layouts::HeadRange keys);

/// Attends of a program that are one launch.
struct JoinedLaunch {
    std::vector<std::size_t> attends;  ///< by instruction, ascending; the launch takes the place of the first one
    layouts::HeadRange rows, keys;     ///< heads of all
    bool first = true, last = true;    ///< forward: of these heads on this rank
    /// It may be enqueued before the transfers that it waits for, because no later operation delays those.
    bool waits_inside = false;
    std::unique_ptr<JoinedWork> work;

    std::size_t place_of(std::size_t attend) const;
};

/// The joined launches of one rank's pass: of each join, or of its stretches where a launch cannot wait for what its
/// own attends have a part in. The hopper family alone has such kernels, for all of a rank's own rows against whole
/// blocks; other joins are launched attend by attend.
class JoinedLaunches {
public:
    struct Options {
        WorkList::Options list;
        JoinedWaits waits = JoinedWaits::before;
        std::chrono::nanoseconds most_wait = std::chrono::minutes(1);  ///< of a launch for a block
        bool tells_arrivals = false;  ///< messages that may come early write their flags themselves
    };

    JoinedLaunches(const layouts::Schedule& pass, const layouts::RankProgram& program, const PassMemory& memory,
                   std::shared_ptr<const RowBounds> own_rows, const Options& options);

    /// The launch that an instruction is part of, or null.
    const JoinedLaunch* find(std::size_t instruction) const;

    void begin_pass();

    /// After a transfer, in stream order: launches that wait for it inside may go on.
    void arrived(std::size_t transfer, cudaStream_t stream) const;

    /// Holds `stream` back until a joined attend, enqueued already, has ended; false if only its whole launch can be
    /// waited for.
    bool wait_until_ended(std::size_t attend, cudaStream_t stream) const;

    /// Throws Error if a launch has waited for a block for too long.
    void require_arrived() const;

    /// After a failure: launches under way wait no more, whatever they read.
    void give_up() noexcept;

    std::int64_t device_bytes() const;

private:
    bool can_join(const std::vector<std::size_t>& attends) const;
    bool can_wait_inside(const std::vector<std::size_t>& attends) const;
    std::vector<std::vector<std::size_t>> launches_of(const layouts::FusedLaunch& join) const;
    void add(std::vector<std::size_t> attends, const PassMemory& memory, const std::shared_ptr<const RowBounds>& rows);
    const layouts::Op& op(std::size_t instruction) const { return program_.code[instruction].op; }

    const layouts::Schedule& pass_;
    const layouts::RankProgram& program_;
    Options options_;
    std::vector<JoinedLaunch> launches_;
    std::map<std::size_t, std::size_t> of_attend_;  // launch by instruction
    struct Waiting {
        std::size_t attend;
        bool gradient;  // to touch its gradient, not to begin
    };
    std::multimap<std::size_t, Waiting> waiting_;  // by the transfer that is waited for inside
};

}  // namespace ringlab::gpu
