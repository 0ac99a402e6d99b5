#pragma once

#include "gpu/kernels/attention.hpp"

#include <chrono>
#include <optional>

namespace ringlab::gpu {

/// The tensors that one attend of a fused launch reads and, backward, writes.
struct FusedBlock {
    int owner = 0;  ///< rank that owns the keys; blocks of one owner have the same keys
    std::span<const layouts::Run> keys;
    int first_head = 0;             ///< first kv head, among those of the launch
    ConstView k, v;                 ///< from that head on
    View dk, dv;                    ///< backward: overwritten, or added to
    bool adds = false;              ///< backward: dk and dv are added to
    bool arrives = false;           ///< the launch waits for the block, until a stream passes arrived()
    bool gradient_arrives = false;  ///< the launch waits for gradient_arrived() before it touches dk and dv
    /// Device memory where somebody else writes the number of the pass (from 1) in place of those calls, if not null.
    const std::uint32_t *arrival_flag = nullptr, *gradient_flag = nullptr;
    bool is_awaited = false;  ///< backward: a stream will wait for the block by wait_until_done()
};

struct FusedOptions {
    WorkListOptions list;
    AttendShape shape;             ///< of the launch: all kv heads that it computes
    std::int64_t block_heads = 1;  ///< kv heads of each block
    std::chrono::nanoseconds most_wait = std::chrono::minutes(1);
    cudaStream_t give_up_stream = nullptr;  ///< of give_up(); nothing on it may wait for the launches
};

/// Several attends of one rank fused into one launch: all its query rows against several K/V blocks, each of them whole
/// or as equal groups of kv heads. Forward, a query row's state stays in registers from its first block to its last.
/// The launch may begin before blocks have arrived: it waits for each block before it first reads it.
///
/// KernelFamily::make_fused() makes it, from blocks in the order in which they should be processed. Forward, all head
/// groups must have the same blocks in the same order. One thread at a time uses it, pass after pass.
class FusedWork {
public:
    virtual ~FusedWork() = default;

    /// Before anything of a pass is enqueued: nothing has arrived. No two passes have the same number.
    virtual void begin_pass(std::uint32_t number) = 0;

    /// Enqueues on `stream` the note that block `index` has arrived, or that its dk and dv may be touched.
    virtual void arrived(std::size_t index, cudaStream_t stream) = 0;
    virtual void gradient_arrived(std::size_t index, cudaStream_t stream) = 0;

    /// Enqueues on `stream` a wait for all of a block's dk and dv. The launch of this pass must be enqueued already.
    virtual void wait_until_done(std::size_t index, cudaStream_t stream) const = 0;

    /// The block that a launch waited for until its time was up. The results of that launch are of no use.
    struct Late {
        std::size_t block = 0;
        bool gradient = false;
    };
    virtual std::optional<Late> late() const = 0;

    /// After a failure: running launches wait no longer, and read whatever is there.
    virtual void give_up() noexcept = 0;

    virtual std::int64_t device_bytes() const = 0;

    /// gpu::attend_forward() and gpu::attend_backward() over all blocks; k and v (dk and dv) of `args` are not used.
    virtual void attend_forward(const ForwardArgs& args, cudaStream_t stream) = 0;
    virtual void attend_backward(const BackwardArgs& args, cudaStream_t stream) = 0;
};

}  // namespace ringlab::gpu
