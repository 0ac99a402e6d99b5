#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "gpu/kernels/merging.hpp"
#include "gpu/ranks/rank_memory.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace ringlab::gpu {

/// Room for the messages that launches send a rank: MapOptions::merging_pairs of a forward pass. 0 if ranks have too
/// many rows for such launches, or the schedule has none.
std::size_t merging_pairs(const layouts::Schedule& schedule, const layouts::Program& program);

/// A rank's pass of a schedule with is_one_launch(), as one launch: see MergingArgs.
class MergingPass {
public:
    /// Finds the work list of an attend of `rows` to the rank's own keys.
    using FindWorkList = std::function<const WorkList&(const layouts::Part& rows)>;

    struct Options {
        const KernelFamily& family;
        std::chrono::nanoseconds most_wait;  ///< longest time that a launch waits for a peer
        int ranks_on_device = 1;             ///< see MergingArgs
        cudaStream_t give_up_stream;         ///< of give_up(); it has to be idle when this object ends
    };

    /// `maps`: those of all ranks of the ring. What is passed must outlive it.
    MergingPass(const layouts::Schedule& schedule, const layouts::Program& program, int rank, const PassMemory& memory,
                std::vector<SlotMap> maps, const FindWorkList& work_list, const Options& options);
    MergingPass(const MergingPass&) = delete;
    MergingPass& operator=(const MergingPass&) = delete;

    /// Whether this rank can run the pass in one launch. Then it does if all ranks can, and call connect().
    bool is_possible() const { return is_possible_; }
    /// `memory_of`: where this device finds the exchange memory of each rank of the ring.
    void connect(const std::function<char*(int)>& memory_of);
    bool is_connected() const { return is_connected_; }

    /// `result`: of the own rows, the same in every pass. `number`: of the pass.
    void launch(std::uint32_t number, const ForwardResult& result, cudaStream_t stream);

    /// Throws Error if a launch has waited too long for a peer.
    void require_arrived() const;
    /// After a failure: a running launch waits no longer, and reads whatever is there.
    void give_up() noexcept;

private:
    using Code = std::vector<layouts::Instruction>;
    const Code& code(int rank) const { return program_.ranks[static_cast<std::size_t>(rank)].code; }
    std::size_t other_of(int block) const;
    /// Where the pairs of a message lie, in memory of the rank that receives it.
    Pair* pairs_at(char* memory, int receiver, std::size_t receive) const;
    ResultPairs result_at(Pair* pairs, int owner) const;

    const layouts::Schedule& schedule_;
    const layouts::Program& program_;
    const int rank_;
    const PassMemory& memory_;
    const std::vector<SlotMap> maps_;
    const AttendShape shape_;
    const Options options_;
    bool is_possible_ = false, is_connected_ = false;

    const WorkList* own_work_ = nullptr;
    std::vector<Pair*> messages_;
    std::vector<OtherRows> others_;  // in the order of the attends
    std::vector<ResultPairs> arriving_;
    // The instructions that receive others_ and arriving_, and the blocks of the former.
    std::vector<std::size_t> rows_received_, results_received_;
    std::vector<int> other_blocks_;

    MergingWork work_;  // from the first launch on
    DeviceBuffer own_pairs_, late_;
    std::shared_ptr<std::uint32_t> reported_;  // in host memory that the device sees
};

}  // namespace ringlab::gpu
