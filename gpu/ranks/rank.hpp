#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/ranks/finite_check.hpp"
#include "gpu/ranks/joined_launches.hpp"
#include "gpu/ranks/latent_products.hpp"
#include "gpu/ranks/rank_memory.hpp"

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

namespace ringlab::gpu {

/// How a rank computes; see GpuOptions.
struct RankOptions {
    MapOptions memory;
    bool deterministic = false;
    bool check_finite = false;
    KernelFamily kernels = KernelFamily::automatic;
    JoinedWaits joined_waits = JoinedWaits::before;
    std::chrono::nanoseconds most_wait = std::chrono::minutes(1);  ///< of a launch for a block
};

/// What one rank holds on its device, and its arithmetic. One thread at a time; all device work goes to the streams
/// that are given.
class Rank {
public:
    /// `backward` may be null; `programs` are those of the schedules. Allocates everything and builds the work lists of
    /// all passes; the device must be current and stays so. Throws Error if the kernels cannot do the problem.
    Rank(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank,
         const std::vector<const layouts::Program*>& programs, Fabric& fabric, const RankOptions& options);

    /// What peers read and write.
    Member::Region exchange_memory() const { return {memory_.data(), memory_.map().bytes()}; }
    const RankMemory& memory() const { return memory_; }
    const MemoryUse& memory_use() const { return memory_use_; }

    const layouts::RankProgram& program(layouts::Pass pass) const { return *of(pass).program; }

    /// Of a transfer.
    std::span<const Piece> pieces(layouts::Pass pass, std::size_t index) const { return of(pass).pieces[index]; }

    JoinedLaunches& launches(layouts::Pass pass) { return *of(pass).launches; }
    const JoinedLaunches& launches(layouts::Pass pass) const { return *of(pass).launches; }

    /// Of a message that may come early, where the fabric tells arrivals: its flag has the pass's number once it is
    /// there.
    bool is_told(layouts::Pass pass, std::size_t index) const {
        return tells_arrivals_ && of(pass).program->code[index].may_arrive_early;
    }
    std::uint32_t pass_number(layouts::Pass pass) const { return of(pass).number; }

    /// After a failure: launches and streams wait no more for arrivals, whatever they read.
    void give_up() noexcept;

    /// Inputs, of this seed where none are given, and results; these wait for the device.
    void load(const HostInputs& inputs);
    void load_random(int seed);
    RankOutputs download() const;

    /// What a pass needs before its first operation: clear() before anything can arrive from outside, start() before
    /// the first attend, and before anything of rows moves.
    void clear(layouts::Pass pass, cudaStream_t stream);
    void start(layouts::Pass pass, cudaStream_t stream);
    bool moves_rows(layouts::Pass pass) const { return of(pass).moves_rows; }

    /// An attend, merge, add or copy; of joined attends the first one launches all, the others do nothing.
    void compute(layouts::Pass pass, std::size_t index, cudaStream_t stream);

    /// After a transfer, in stream order: what waits for it inside of a launch may go on, and what travels in another
    /// type than it is kept in is converted.
    void arrived(layouts::Pass pass, std::size_t index, cudaStream_t stream);

    bool checks_finite() const { return finite_.has_value(); }

    /// Whether a backward pass leaves nothing of the forward pass's fp32 output: with round_results dQ is summed where
    /// that was, once it has served. Another backward pass then wants a forward pass before it.
    bool backward_overwrites_output() const { return memory_.map().dq_overwrites_output(); }

    /// Q and K, which a forward pass attends to as they are then; or dQ and dK, behind all else of a backward pass.
    /// Nobody else may use them meanwhile. Only where the problem says how.
    void rotate(layouts::Pass pass, cudaStream_t stream);

    /// After the last operation: results with sinks, and in the problem's dtype, if asked for.
    void finish(layouts::Pass pass, cudaStream_t stream);

    /// Looks at what an operation has written, in stream order, if check_finite was asked for.
    void check(layouts::Pass pass, std::size_t index, cudaStream_t stream);

    /// The first tensor of the pass that has just ended that was not finite, if any; waits for it.
    std::optional<NotFinite> first_not_finite(layouts::Pass pass) const;

private:
    using Tokens = std::tuple<int, std::int64_t, std::int64_t>;  // block, first, end
    struct PassState {
        const layouts::Schedule* schedule = nullptr;
        const layouts::RankProgram* program = nullptr;
        std::optional<PassMemory> memory;
        std::uint32_t number = 0;                // of passes so far
        std::vector<std::vector<Piece>> pieces;  // by instruction
        bool moves_rows = false;
        bool output_comes_late = false;                                             // not, or not only, from attends
        std::map<std::pair<Tokens, Tokens>, std::unique_ptr<WorkList>> work_lists;  // by rows and keys
        std::unique_ptr<JoinedLaunches> launches;
    };

    static Tokens tokens_of(const layouts::Part& part) { return {part.block, part.tokens.begin, part.tokens.end}; }
    PassState& of(layouts::Pass pass) { return passes_[static_cast<std::size_t>(pass)]; }
    const PassState& of(layouts::Pass pass) const { return passes_[static_cast<std::size_t>(pass)]; }

    void set_up(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps);
    void list_pieces(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps);
    void build_work_lists(PassState& pass);
    std::shared_ptr<const RowBounds> row_bounds(const std::vector<layouts::Run>& rows);
    std::shared_ptr<const KeyPositions> key_positions(const std::vector<layouts::Run>& keys);
    const WorkList& work_list(const PassState& pass, const layouts::Op& attend) const;

    ForwardArgs forward_args(const PassState& pass, const layouts::Instruction& attend, layouts::HeadRange rows,
                             bool first, bool last) const;
    BackwardArgs backward_args(const PassState& pass, const layouts::Instruction& attend,
                               layouts::HeadRange rows) const;
    void attend_forward(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void attend_backward(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void attend_joined(const PassState& pass, const JoinedLaunch& launch, cudaStream_t stream);
    void add_sinks(cudaStream_t stream);
    void merge(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void add(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void copy(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void expand(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void compress(const PassState& pass, const layouts::Instruction& instruction, cudaStream_t stream);
    void copy_field(const Field& to, const Field& from, cudaStream_t stream) const;

    const layouts::Problem& problem_;
    int rank_;
    RankOptions options_;
    RankMemory memory_;
    bool tells_arrivals_;
    Stream other_stream_;
    MemoryUse memory_use_;
    std::array<PassState, 2> passes_;
    std::vector<std::shared_ptr<const RowBounds>> row_bounds_;
    std::vector<std::shared_ptr<const KeyPositions>> key_positions_;
    std::optional<FiniteCheck> finite_;
    std::unique_ptr<LatentProducts> latent_;             // where there is one
    std::optional<DeviceBuffer> positions_;              // of own tokens, by which they are rotated
    std::optional<DeviceBuffer> row_positions_;          // of own rows, where not all tokens have one
    std::optional<DeviceBuffer> sinks_, sink_gradient_;  // by query head, if there are sinks
};

}  // namespace ringlab::gpu
