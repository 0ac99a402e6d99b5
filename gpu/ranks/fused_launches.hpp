#pragma once

#include "gpu/kernels/fused_work.hpp"
#include "gpu/ranks/rank_memory.hpp"

#include <chrono>
#include <map>
#include <set>

namespace ringlab::gpu {

/// When a fused launch starts, and whether its kernel waits for blocks that have not arrived.
enum class FusedStart {
    at_once,  ///< the kernel waits for each block before it reads it. It may hold all SMs meanwhile, so nothing that
              ///< brings blocks may need an SM of this device
    all_arrived,   ///< the launch starts when all blocks have arrived
    local_before,  ///< as all_arrived, but blocks that are there from the start get a launch of their own before
};

/// The shape of an attend of these query heads to these kv heads.
AttendShape attend_shape(const layouts::Problem& problem, layouts::HeadRange rows, layouts::HeadRange keys);

/// Attends of a program that one launch of a kernel computes.
struct FusedAttends {
    std::vector<std::size_t> attends;  ///< their instructions, ascending; the launch takes the place of the first one
    layouts::HeadRange rows, keys;     ///< query heads and kv heads of all attends
    bool first = true, last = true;    ///< forward: whether they are the first and the last ones of these rows
    /// Whether the kernel waits for blocks. Then the launch may be enqueued before the transfers that bring them.
    bool waits_for_blocks = false;
    std::unique_ptr<FusedWork> work;

    /// The block of `work` that belongs to an attend.
    std::size_t block_of(std::size_t attend) const;
};

/// The fused launches of one rank's pass. Each layouts::FusedLaunch becomes one of them, or one per section if the
/// kernel would wait for something that its own attends contribute to. Attends stay apart if the kernel family cannot
/// fuse, or if they are not all of the rank's own rows against whole blocks.
class FusedLaunches {
public:
    struct Options {
        WorkListOptions list;
        FusedStart start = FusedStart::all_arrived;
        std::chrono::nanoseconds most_wait = std::chrono::minutes(1);  ///< longest time that a kernel waits for a block
        cudaStream_t give_up_stream = nullptr;                         ///< see FusedOptions
        /// Ring ranks whose messages that may come early set an arrival flag, see gpu::flagged_peers().
        std::set<int> flagged_peers;
    };

    FusedLaunches(const layouts::Schedule& pass, const layouts::RankProgram& program, const PassMemory& memory,
                  std::shared_ptr<const RowBounds> own_rows, const Options& options);

    /// The launch that an attend is part of, or null.
    const FusedAttends* find(std::size_t instruction) const;

    void begin_pass(std::uint32_t number);

    /// After a transfer, in stream order: kernels that wait for it may go on.
    void arrived(std::size_t transfer, cudaStream_t stream) const;

    /// Enqueues on `stream` a wait for a fused attend, which must be enqueued already. False if one can only wait for
    /// its whole launch.
    bool wait_until_done(std::size_t attend, cudaStream_t stream) const;

    /// Throws Error if a kernel has waited too long for a block.
    void require_arrived() const;

    /// After a failure: running kernels wait no longer, and read whatever is there.
    void give_up() noexcept;

    std::int64_t device_bytes() const;

private:
    bool can_fuse(const std::vector<std::size_t>& attends) const;
    bool can_wait_for_blocks(const std::vector<std::size_t>& attends) const;
    std::vector<std::vector<std::size_t>> launches_of(const layouts::FusedLaunch& fused) const;
    void add(std::vector<std::size_t> attends, const PassMemory& memory, const std::shared_ptr<const RowBounds>& rows);
    const layouts::Op& op(std::size_t instruction) const { return program_.code[instruction].op; }

    const layouts::Schedule& pass_;
    const layouts::RankProgram& program_;
    Options options_;
    std::vector<FusedAttends> launches_;
    std::map<std::size_t, std::size_t> of_attend_;  // launch by instruction
    struct Waiting {
        std::size_t attend;
        bool gradient;  // for the block's gradient, not for the block
    };
    std::multimap<std::size_t, Waiting> waiting_;  // kernels' waits, by transfer
};

}  // namespace ringlab::gpu
