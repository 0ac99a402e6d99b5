#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/ranks/fused_launches.hpp"
#include "gpu/ranks/latent_products.hpp"
#include "gpu/ranks/merging_pass.hpp"
#include "gpu/ranks/rank_memory.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

namespace ringlab::gpu {

/// How a rank computes; see GpuOptions.
struct RankOptions {
    MapOptions memory;
    bool deterministic = false;
    const KernelFamily* kernels = nullptr;
    FusedStart fused_start = FusedStart::all_arrived;
    std::chrono::nanoseconds most_wait = std::chrono::minutes(1);  ///< longest time that a launch waits for a block
    std::set<int> flagged_peers;                                   ///< see gpu::flagged_peers()
    DeviceMemory* tables = &DeviceMemory::plain();                 ///< of work lists; outlives the rank
    /// Where passes are counted, and a stream for give_up(), of all ranks that share exchange memory. If null, the rank
    /// has its own.
    std::uint32_t* passes = nullptr;
    cudaStream_t give_up_stream = nullptr;
    /// How many ranks may have a pass in one launch on this device at the same time; 0: none may.
    int merging_ranks = 0;
};

/// One rank's memory on its device, and its arithmetic. One thread at a time; all device work goes to the streams that
/// are given.
class Rank {
public:
    /// `backward` may be null; `programs` are those of the schedules and outlive the rank, `maps` of all ranks by
    /// options.memory, and `exchange` is exchange memory. Builds the work lists of all passes; the device must be
    /// current and stays so. Throws Error if the kernels cannot do the problem.
    Rank(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank,
         const std::vector<layouts::Program>& programs, const std::vector<SlotMap>& maps,
         std::shared_ptr<void> exchange, const RankOptions& options);
    /// Waits for what give_up() may have enqueued on the rank's own stream: it writes to memory that ends here.
    ~Rank();

    const RankMemory& memory() const { return memory_; }
    /// Bytes of local memory that a pass uses: all of it or nothing.
    std::size_t local_bytes(layouts::Pass pass) const;
    const MemoryUse& memory_use() const { return memory_use_; }

    const layouts::RankProgram& program(layouts::Pass pass) const { return *of(pass).program; }

    /// Which kernels a pass launches, as far as they depend on the mask's and layout's numbers.
    std::string kernel_choices(layouts::Pass pass) const;

    /// The pieces of memory that a transfer moves.
    std::span<const Piece> pieces(layouts::Pass pass, std::size_t index) const { return of(pass).pieces[index]; }

    const FusedLaunches& launches(layouts::Pass pass) const { return *of(pass).launches; }

    /// Whether the sender of a message sets an arrival flag, which has the pass's number once the message is there.
    bool has_arrival_flag(layouts::Pass pass, std::size_t index) const {
        const auto& instruction = of(pass).program->code[index];
        return instruction.may_arrive_early && options_.flagged_peers.contains(instruction.op.peer);
    }
    std::uint32_t pass_number() const { return number_; }  ///< of the latest pass

    /// The pass as one launch, if its schedule and RankOptions::merging_ranks allow it; otherwise null. It is connected
    /// if the pass does run so: all of its operations then happen in launch_merging().
    MergingPass* merging(layouts::Pass pass) const { return of(pass).merging.get(); }
    bool is_one_launch(layouts::Pass pass) const { return merging(pass) && merging(pass)->is_connected(); }
    void launch_merging(cudaStream_t stream);

    /// Throws Error if a launch of the pass has waited too long for a peer.
    void require_arrived(layouts::Pass pass) const;

    /// After a failure: kernels and streams wait no longer for arrivals, and read whatever is there.
    void give_up() noexcept;

    /// Inputs (or random ones of this seed) to the device, and results from it. They wait for the device.
    void load(const HostInputs& inputs);
    void load_random(int seed);
    RankOutputs download() const;

    /// Before and after a pass, if the caller lends tensors (MapOptions::lent). take() uses what the caller gives where
    /// it lies or, where peers read it, copies it; rows that see nothing and keys that no row sees, such as padding,
    /// become 0 in the copies, because 0 times NaN would be NaN. give_back() copies results that are not there yet. In
    /// stream order.
    void take(layouts::Pass pass, const CallerTensors& tensors, cudaStream_t stream);
    void give_back(layouts::Pass pass, const CallerTensors& tensors, cudaStream_t stream);

    /// The seed of all passes from now on.
    void set_dropout_seed(std::uint64_t seed) { problem_.dropout.seed = seed; }

    /// Before the first operation of a pass: clear() before messages can arrive, start() before the first attend and
    /// before messages with query rows.
    void clear(layouts::Pass pass, cudaStream_t stream);
    void start(layouts::Pass pass, cudaStream_t stream);
    bool moves_rows(layouts::Pass pass) const { return of(pass).moves_rows; }

    /// An operation of the compute lane. The first of fused attends launches all of them, the others do nothing.
    void compute(layouts::Pass pass, std::size_t index, cudaStream_t stream);

    /// After a transfer, in stream order: kernels that wait for it may go on, and data that travels in another type
    /// than it is stored in is converted.
    void arrived(layouts::Pass pass, std::size_t index, cudaStream_t stream);

    /// Whether a backward pass overwrites the forward pass's fp32 output: with round_results dQ uses the same memory.
    /// Then every backward pass needs a forward pass before it.
    bool backward_overwrites_output() const { return memory_.map().dq_overwrites_output(); }

    /// Rotary embedding: rotates Q and K before a forward pass, or dQ and dK after a backward pass. Nobody else may use
    /// them meanwhile. Only for problems with rotary embedding.
    void rotate(layouts::Pass pass, cudaStream_t stream);

    /// After the last operation: adds sinks and rounds results to the problem's dtype, if asked for.
    void finish(layouts::Pass pass, cudaStream_t stream);

private:
    using Tokens = std::tuple<int, std::int64_t, std::int64_t>;  // block, first, end
    struct PassState {
        const layouts::Schedule* schedule = nullptr;
        const layouts::RankProgram* program = nullptr;
        std::optional<PassMemory> memory;
        std::vector<std::vector<Piece>> pieces;  // by instruction
        bool moves_rows = false;
        bool output_comes_late = false;                                             // not, or not only, from attends
        std::span<const layouts::Instruction> rounded_adds;                         // see find_rounded_adds()
        std::map<std::pair<Tokens, Tokens>, std::unique_ptr<WorkList>> work_lists;  // by rows and keys
        std::unique_ptr<FusedLaunches> launches;
        std::unique_ptr<MergingPass> merging;
    };

    static Tokens tokens_of(const layouts::Part& part) { return {part.block, part.tokens.begin, part.tokens.end}; }
    PassState& of(layouts::Pass pass) { return passes_[static_cast<std::size_t>(pass)]; }
    const PassState& of(layouts::Pass pass) const { return passes_[static_cast<std::size_t>(pass)]; }

    void set_up(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps);
    void list_pieces(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps);
    void find_rounded_adds(PassState& pass) const;
    void build_work_lists(PassState& pass);
    WorkListOptions list_options(const PassState& pass) const;
    void add_work_list(PassState& pass, const layouts::Part& rows, const layouts::Part& keys);
    void prepare_merging(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps);
    std::shared_ptr<const RowBounds> row_bounds(const std::vector<layouts::Run>& rows);
    std::shared_ptr<const KeyPositions> key_positions(const std::vector<layouts::Run>& keys);
    const WorkList& work_list(const PassState& pass, const layouts::Part& rows, const layouts::Part& keys) const;

    ForwardArgs forward_args(const PassState& pass, const layouts::Instruction& attend, layouts::HeadRange rows,
                             bool first, bool last) const;
    BackwardArgs backward_args(const PassState& pass, const layouts::Instruction& attend,
                               layouts::HeadRange rows) const;
    void attend_forward(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void attend_backward(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void attend_fused(const PassState& pass, const FusedAttends& launch, cudaStream_t stream);
    void add_sinks(cudaStream_t stream);
    void merge(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void add(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void copy(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void expand(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void compress(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void copy_field(const Field& to, const Field& from, cudaStream_t stream) const;

    layouts::Problem problem_;
    int rank_;
    RankOptions options_;
    RankMemory memory_;
    std::optional<Stream> own_give_up_stream_;
    std::uint32_t own_count_ = 0;
    std::uint32_t& count_;  // of passes
    std::uint32_t number_ = 0;
    MemoryUse memory_use_;
    std::array<PassState, 2> passes_;
    std::vector<std::shared_ptr<const RowBounds>> row_bounds_;
    std::vector<std::shared_ptr<const KeyPositions>> key_positions_;
    std::unique_ptr<LatentProducts> latent_;             // where there is one
    std::optional<DeviceBuffer> positions_;              // of own tokens, by which they are rotated
    std::optional<DeviceBuffer> row_positions_;          // of own rows, where not all tokens have one
    DeviceBuffer blind_rows_, unseen_keys_;              // indices of own tokens that are read as 0, see take()
    std::optional<DeviceBuffer> sinks_, sink_gradient_;  // by query head, if there are sinks
    DeviceBuffer semaphores_;                            // BackwardArgs::semaphores, if dq has a fixed order
};

}  // namespace ringlab::gpu
