#pragma once

#include "gpu/cuda_handles.hpp"
#include "gpu/device_buffer.hpp"
#include "gpu/host_tensors.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/program.hpp"
#include "gpu/transport.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace ringlab::gpu {

/// How a rank computes; see GpuOptions.
struct RankOptions {
    bool round_running_output = false;
    bool round_results = false;
    bool deterministic = false;
    bool check_finite = false;
    KernelFamily kernels = KernelFamily::automatic;
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

    /// An attend, merge or add.
    void compute(const Program& program, const Instruction& instruction, cudaStream_t stream);

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
    void build_work_lists(const Program& program);
    const WorkList& work_list(layouts::Pass pass, int owner) const;

    /// Views of a block in exchange memory, from the first of `heads` on.
    Block block(void* memory, std::size_t offset, int owner, DType dtype) const;
    AttendShape shape(layouts::HeadRange heads) const;
    std::int64_t first_query_head(layouts::HeadRange heads) const;
    DType gradient_dtype(const Program& program, int slot) const;
    Extent rows_extent(layouts::HeadRange heads) const;

    void attend_forward(const Program& program, const Instruction& instruction, cudaStream_t stream);
    void attend_backward(const Program& program, const Instruction& instruction, cudaStream_t stream);
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

    // By instruction and tensor of it; see checked_tensors.
    DeviceBuffer finite_flags_;
};

}  // namespace ringlab::gpu
