#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/hopper/units/unit_order.hpp"

#include <chrono>
#include <optional>
#include <span>
#include <vector>

namespace ringlab::gpu {

namespace hopper {
struct Joined;
}

/// Several attends of one rank as one launch of the hopper family: all its query rows against several K/V blocks, each
/// of them whole or as equal groups of kv heads. Forward, a query row's state stays in registers from its first block
/// to its last. The launch may begin before blocks have arrived: it waits for each before it first reads it.
///
/// Made once and used pass after pass, by one thread at a time.
class JoinedWork {
public:
    /// What one attend of a schedule reads and, backward, writes.
    struct Block {
        int owner = 0;  ///< blocks of one owner have the same keys
        std::span<const layouts::Run> keys;
        int first_head = 0;             ///< kv head, of those that the launch computes
        ConstView k, v;                 ///< from that head on
        View dk, dv;                    ///< backward: overwritten, or added to
        bool adds = false;              ///< to dk and dv
        bool arrives = false;           ///< it is waited for, until arrived() is passed by some stream
        bool gradient_arrives = false;  ///< likewise gradient_arrived(), before dk and dv are touched
        /// Then, if not null, somebody else says so: device memory that gets the number of the pass, from 1.
        const std::uint32_t *arrival_flag = nullptr, *gradient_flag = nullptr;
        bool is_awaited = false;  ///< backward: some stream will wait for it by wait_until_ended()
    };

    struct Options {
        WorkList::Options list;
        AttendShape shape;             ///< of the launch: all kv heads that it computes
        std::int64_t block_heads = 1;  ///< kv heads of each block
        std::chrono::nanoseconds most_wait = std::chrono::minutes(1);
    };

    /// `blocks` in the order in which they should be taken. Forward, all head groups must have the same blocks in the
    /// same order. Builds everything that launches need and waits for the device.
    JoinedWork(const layouts::Mask& mask, std::shared_ptr<const RowBounds> rows, std::span<const Block> blocks,
               const Options& options);
    ~JoinedWork();
    JoinedWork(const JoinedWork&) = delete;
    JoinedWork& operator=(const JoinedWork&) = delete;

    /// Before anything of a pass is enqueued: nothing has arrived.
    void begin_pass() { ++pass_; }

    /// In stream order: block `index` has arrived.
    void arrived(std::size_t index, cudaStream_t stream);

    /// Likewise: its dk and dv may be touched.
    void gradient_arrived(std::size_t index, cudaStream_t stream);

    /// Holds `stream` back until the launch of this pass, enqueued already, has written all of a block's dk and dv.
    void wait_until_ended(std::size_t index, cudaStream_t stream) const;

    /// What a launch waited for in vain. What that launch wrote is of no use.
    struct Late {
        std::size_t block = 0;
        bool gradient = false;
    };
    std::optional<Late> late() const;

    /// After a failure: launches under way wait no more, whatever they read.
    void give_up() noexcept;

    const RowBounds& rows() const { return *rows_; }
    const Options& options() const { return options_; }
    std::int64_t device_bytes() const { return device_bytes_; }

    // For attention.cpp.
    hopper::Joined joined() const;
    std::int64_t launch_items() const { return items_; }  ///< forward: query tiles
    std::int64_t longest() const { return longest_; }     ///< entries of the longest item
    std::int64_t entries() const { return entries_; }
    const std::int32_t* device_items() const { return items_device_.as<const std::int32_t>(); }
    const std::int32_t* device_entries() const { return entries_device_.as<const std::int32_t>(); }
    const std::int32_t* device_turns() const { return turns_device_.as<const std::int32_t>(); }
    const std::int32_t* device_key_positions() const { return positions_.as<const std::int32_t>(); }
    std::uint32_t* counter() const { return counter_.as<std::uint32_t>(); }
    /// Backward: thread blocks that share an item.
    int blocks_per_item() const { return blocks_per_item_; }
    /// Backward: in which order a block's items are done.
    hopper::WorkTileOrder order() const { return order_; }
    const Block& first_block() const { return blocks_.front(); }

private:
    int head_by_head() const;
    struct Places;
    void list_queries(const layouts::Mask& mask, const Places& places);
    void list_keys(const layouts::Mask& mask, const Places& places);
    void make_table(const Places& places);
    std::uint32_t* gradient_flag(std::size_t block) const {
        return ready_.as<std::uint32_t>() + blocks_.size() + block;
    }

    std::shared_ptr<const RowBounds> rows_;
    Options options_;
    std::vector<Block> blocks_;             // as given
    std::vector<std::size_t> table_place_;  // by block
    int groups_ = 1;
    std::int64_t items_ = 0, longest_ = 0, entries_ = 0;
    int blocks_per_item_ = 1;
    hopper::WorkTileOrder order_;             // backward, of a block's items
    std::vector<std::uint32_t> block_items_;  // backward, by block: its items
    std::uint32_t pass_ = 0;
    std::uint32_t* told_ = nullptr;  // in host memory that the device sees
    DeviceBuffer late_;
    Stream other_stream_;
    DeviceBuffer positions_, items_device_, first_items_, entries_device_, turns_device_, table_, ready_, ended_,
        counter_;
    std::int64_t device_bytes_ = 0;
};

/// As the functions of attention.hpp over all blocks of `work`; k and v (dk and dv) of `args` are not looked at.
void attend_forward(const ForwardArgs& args, const JoinedWork& work, cudaStream_t stream);
void attend_backward(const BackwardArgs& args, const JoinedWork& work, cudaStream_t stream);

}  // namespace ringlab::gpu
