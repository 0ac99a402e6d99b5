#pragma once

#include "gpu/cuda_handles.hpp"
#include "gpu/device_buffer.hpp"
#include "gpu/host_tensors.hpp"
#include "gpu/kernels/joined_work.hpp"
#include "gpu/program.hpp"
#include "gpu/transport.hpp"

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace ringlab::gpu {

/// What attends that a schedule joins wait for, where the kernels can do them in one launch.
enum class JoinedWaits {
    inside,  ///< the launch begins at once and waits for each block before it reads it. Only where nothing that brings
             ///< blocks needs multiprocessors of this device: the launch may hold all of them
    before,  ///< the launch begins when all has arrived
    apart,   ///< as before, but what is there from the start has a launch of its own ahead
};

/// How a rank computes; see GpuOptions.
struct RankOptions {
    bool round_running_output = false;
    bool round_results = false;
    bool deterministic = false;
    bool check_finite = false;
    KernelFamily kernels = KernelFamily::automatic;
    JoinedWaits joined_waits = JoinedWaits::before;
    std::chrono::nanoseconds most_wait = std::chrono::minutes(1);  ///< of a launch for a block
};

/// Attends of a program that are one launch.
struct JoinedLaunch {
    std::vector<std::size_t> attends;  ///< by instruction, ascending; the launch takes the place of the first one
    layouts::HeadRange heads;          ///< of all
    bool first = true, last = true;    ///< forward: of these heads on this rank
    bool waits_inside = false;
    /// It may be enqueued before what it waits for: fetches that nothing holds back, so they are enqueued next.
    bool runs_ahead = false;
    std::unique_ptr<JoinedWork> work;

    std::size_t place_of(std::size_t attend) const;
};

/// Device memory of one rank, bytes.
struct MemoryUse {
    std::int64_t inputs = 0;   ///< Q, K, V and dO of the shard
    std::int64_t results = 0;  ///< O, lse, dQ, dK, dV
    std::int64_t slots = 0;    ///< scratch slots of the schedule
    std::int64_t work = 0;     ///< running softmax, partial results, statistics, work lists

    std::int64_t total() const { return inputs + results + slots + work; }
};

/// A tensor that should be finite and is not.
struct NotFinite {
    int step = 0;
    std::string what;  ///< tensor, rank, step, operation
};

/// A rank's results in host memory, local tokens in local order; shapes (batch, shard tokens, heads, dim).
struct RankOutputs {
    std::vector<float> o, lse, dq, dk, dv;
};

/// What one rank holds on its device, and its arithmetic. One thread at a time; all device work goes to the streams
/// that are given.
class Rank {
public:
    /// `backward` may be null. Allocates everything and builds the work lists of all passes; the device must be current
    /// and stays so. Throws Error if the kernels cannot do the problem.
    Rank(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank,
         const std::vector<const Program*>& programs, Fabric& fabric, const RankOptions& options);

    void load(const HostInputs& inputs);

    /// Normal numbers instead, made on the device; other `seed`s give others.
    void load_random(int seed);

    /// Overwrites scratch and results with NaN, so that nothing of an earlier pass can be taken for this one's.
    void poison(const Program& program, cudaStream_t stream);

    /// What a pass needs before its first operation: zero_gradients() before anything can arrive from outside, start()
    /// before the first attend.
    void zero_gradients(const Program& program, cudaStream_t stream);
    void start(const Program& program, cudaStream_t stream);

    /// An attend, merge or add; of joined attends the first one launches all, the others do nothing.
    void compute(const Program& program, std::size_t index, cudaStream_t stream);

    /// The launch that an instruction is part of, or null. A launch that waits inside need not be held back by what its
    /// attends come after, if arrived() is called for that.
    const JoinedLaunch* launch(const Program& program, std::size_t index) const;

    /// After a transfer, in stream order: launches that wait for it inside may go on.
    void arrived(const Program& program, std::size_t index, cudaStream_t stream);

    /// Holds `stream` back until a joined attend, enqueued already, has ended; false if only its whole launch can be
    /// waited for.
    bool wait_until_ended(const Program& program, std::size_t attend, cudaStream_t stream) const;

    /// Throws Error if a launch has waited for a block for too long.
    void require_arrived(const Program& program) const;

    /// After a failure: launches under way wait no more, whatever they read.
    void give_up() noexcept;

    /// Whether a backward pass leaves nothing of the forward pass's fp32 output: with round_results dQ is summed where
    /// that was, once it has served. Another backward pass then wants a forward pass before it.
    bool backward_overwrites_output() const { return output_or_dq_.data() != nullptr; }

    /// After the last operation: results in the problem's dtype, if asked for. Gradients lie where scratch slots were.
    void finish(const Program& program, cudaStream_t stream);

    /// With check_finite: looks at what an operation has written, in stream order.
    void check(const Program& program, std::size_t index, cudaStream_t stream);

    /// The first tensor of the pass that has just ended that was not finite, if any; waits for it.
    std::optional<NotFinite> first_not_finite(const Program& program) const;

    void* kv() const { return kv_.get(); }
    std::size_t kv_bytes() const { return kv_bytes_; }
    void* gradients() const { return gradients_.get(); }
    std::size_t gradient_bytes() const { return gradient_bytes_; }

    /// A transfer's local end.
    void* exchange(const Instruction& instruction) const;

    RankOutputs download() const;
    const MemoryUse& memory() const { return memory_; }

private:
    struct Tensor {
        DeviceBuffer buffer;  // empty where the tensor lies in other memory
        Extent extent;
        View view;
    };
    struct Rows {
        DeviceBuffer buffer;
        RowView view;
    };
    struct Block {
        View k, v;
    };

    const layouts::Schedule& schedule_of(layouts::Pass pass) const;
    Tensor make_tensor(std::int64_t heads, std::int64_t dim, DType dtype, std::int64_t& account) const;
    Tensor place_tensor(std::int64_t heads, std::int64_t dim, DType dtype, void* memory) const;
    static std::size_t bytes(const Tensor& tensor);
    static void fill(const Tensor& tensor, std::uint8_t byte, cudaStream_t stream);
    void make_gradients(const layouts::Schedule& backward, Fabric& fabric);
    void place_rounded_gradients();
    Rows make_rows(std::int64_t& account) const;
    void join_attends(const Program& program);
    void add_launch(const Program& program, std::vector<std::size_t> attends);
    void build_work_lists(const Program& program);
    const WorkList& work_list(layouts::Pass pass, int owner) const;

    /// Views of a block in exchange memory, from the first of `heads` on.
    Block block(void* memory, std::size_t offset, int owner, DType dtype) const;
    AttendShape shape(layouts::HeadRange heads) const;
    std::int64_t first_query_head(layouts::HeadRange heads) const;
    DType gradient_dtype(const Program& program, int slot) const;
    Extent rows_extent(layouts::HeadRange heads) const;

    ForwardArgs forward_args(layouts::HeadRange heads, bool first, bool last) const;
    BackwardArgs backward_args(layouts::HeadRange heads) const;
    void attend_forward(const Program& program, const Instruction& instruction, cudaStream_t stream);
    void attend_backward(const Program& program, const Instruction& instruction, cudaStream_t stream);
    void attend_joined(const Program& program, const JoinedLaunch& launch, cudaStream_t stream);
    void check_instruction(const Program& program, std::size_t index, bool last, cudaStream_t stream);
    void merge(const Instruction& instruction, cudaStream_t stream);
    void add(const Program& program, const Instruction& instruction, cudaStream_t stream);

    const layouts::Schedule& forward_;
    const layouts::Schedule* backward_;
    const layouts::Problem& problem_;
    int rank_;
    RankOptions options_;
    std::int64_t tokens_;
    MemoryUse memory_;

    DeviceBuffer output_or_dq_;  // fp32
    Tensor q_, dout_, o_, o_rounded_, o_partial_, dq_, dq_rounded_, dk_rounded_, dv_rounded_;
    Rows lse_, lse_partial_, m_, l_;
    DeviceBuffer statistics_memory_;
    Statistics statistics_;
    std::shared_ptr<void> kv_, gradients_;
    std::size_t kv_bytes_ = 0, gradient_bytes_ = 0, kv_scratch_ = 0, gradient_scratch_ = 0;
    DType own_gradient_dtype_ = DType::fp32;

    std::shared_ptr<const RowBounds> row_bounds_;
    std::map<std::pair<layouts::Pass, int>, std::unique_ptr<WorkList>> work_lists_;
    struct PassLaunches {
        std::vector<JoinedLaunch> launches;
        std::map<std::size_t, std::size_t> of_attend;     // launch by instruction
        std::multimap<std::size_t, std::size_t> waiting;  // attend by the transfer it waits for inside
    };
    const PassLaunches& launches_of(const Program& program) const;
    std::array<PassLaunches, 2> launches_;  // by pass

    // By instruction and tensor of it; see checked_tensors.
    DeviceBuffer finite_flags_;
};

}  // namespace ringlab::gpu
