#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/kernels/fused_work.hpp"
#include "gpu/kernels/hopper/common/fused_launch.hpp"
#include "layouts/layouts/launch_order.hpp"

#include <vector>

namespace ringlab::gpu::hopper {

/// FusedWork of the hopper kernels.
class HopperFusedWork : public FusedWork {
public:
    HopperFusedWork(const layouts::Mask& mask, std::shared_ptr<const RowBounds> rows,
                    std::span<const FusedBlock> blocks, const FusedOptions& options);

    void begin_pass(std::uint32_t number) override {
        ++passes_;
        pass_number_ = number;
    }
    void arrived(std::size_t index, cudaStream_t stream) override;
    void gradient_arrived(std::size_t index, cudaStream_t stream) override;
    void wait_until_done(std::size_t index, cudaStream_t stream) const override;
    std::optional<Late> late() const override;
    void give_up() noexcept override;
    std::int64_t device_bytes() const override { return device_bytes_; }
    void attend_forward(const ForwardArgs& args, cudaStream_t stream) override;
    void attend_backward(const BackwardArgs& args, cudaStream_t stream) override;

    const RowBounds& rows() const { return *rows_; }
    FusedLaunch parameters() const;
    /// Forward: query tiles. Backward: key tiles of all blocks.
    std::int64_t work_tiles() const { return work_tiles_; }
    /// On the device, 0 between launches.
    std::uint32_t* counter() const { return counter_.as<std::uint32_t>(); }
    /// Backward: the order of one block's work tiles.
    layouts::WorkTileOrder order() const { return order_; }

private:
    struct KeySegments;
    void list_query_tiles(const layouts::Mask& mask, const KeySegments& segments);
    void list_key_tiles(const layouts::Mask& mask, const KeySegments& segments);
    void make_table(const KeySegments& segments);
    int head_by_head() const;
    Items items() const;
    Geometry geometry(const AttendShape& shape, layouts::Pass pass) const;
    std::uint32_t* gradient_flag(std::size_t block) const {
        return ready_.as<std::uint32_t>() + blocks_.size() + block;
    }

    std::shared_ptr<const RowBounds> rows_;
    FusedOptions options_;
    std::vector<FusedBlock> blocks_;      // as given
    std::vector<std::size_t> table_row_;  // by block: its row of table_
    int groups_ = 1;                      // of kv heads
    std::int64_t work_tiles_ = 0, longest_ = 0, entries_ = 0;
    int blocks_per_work_tile_ = 1;               // backward
    layouts::WorkTileOrder order_;               // backward
    std::vector<std::uint32_t> block_tiles_;     // backward, by block: its work tiles
    std::uint32_t passes_ = 0;                   // so far, which `ended_` counts too
    std::uint32_t pass_number_ = 0;              // of the latest
    std::shared_ptr<std::uint32_t> late_block_;  // in host memory that the device sees
    DeviceBuffer late_;
    DeviceBuffer positions_, items_device_, first_parts_, entries_device_, semaphore_values_, table_, ready_, ended_,
        counter_;
    std::int64_t device_bytes_ = 0;
};

}  // namespace ringlab::gpu::hopper
