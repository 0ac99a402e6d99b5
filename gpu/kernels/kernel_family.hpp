#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/common/tile_config.hpp"
#include "layouts/problem/problem.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::layouts {
class Mask;
}

namespace ringlab::gpu {

struct AttendShape;
struct ForwardArgs;
struct BackwardArgs;
struct FusedBlock;
struct FusedOptions;
class FusedWork;
class KernelFamily;
struct MergingArgs;
class RowBounds;
class WorkList;

/// Enqueues the launch of one number, see MergingArgs. What is the same in all launches of a rank is made once.
using MergingWork = std::function<void(std::uint32_t number, cudaStream_t stream)>;

/// The launches that a work list is for.
struct WorkListOptions {
    layouts::Pass pass = layouts::Pass::forward;
    std::int64_t head_dim = 128;
    std::int64_t value_dim = 128;
    bool deterministic = false;  ///< backward: dq is summed in a fixed order too
    /// The family whose kernels do the work; null lets resolve() choose. WorkList::options() names the chosen family.
    const KernelFamily* family = nullptr;
    DeviceMemory* memory = &DeviceMemory::plain();  ///< of the lists; outlives them
    std::int64_t query_heads_per_kv_head = 1;  ///< may be another number than an attend's, which may then be slower
    bool drops_out = false;                    ///< the attends have dropout, with which no kernel splits the keys
};

/// The query rows of a work list.
struct WorkListRows {
    std::int64_t tokens = 0;
    double per_key = 0;  ///< how many of them see a key that any of them sees, on average
};

/// How a family wants the work list of a launch to be made.
struct WorkListPlan {
    TileShape tile;                ///< of the kernel that does the pass, or most of it
    bool splits_kv = false;        ///< forward: thread blocks split the keys of a work tile
    bool with_semaphores = false;  ///< backward: TileList::device_semaphore_values() are needed
    bool grouped = false;          ///< backward: see group_by_last_entry()
    /// Backward: tile of a second kernel that computes dq alone, query tile by query tile.
    std::optional<TileShape> query_tile = std::nullopt;
    std::size_t counters = 0;  ///< WorkList::next_counter() hands out this many in turn
};

/// The work tiles that thread blocks of a kernel process, for models of its time.
struct KernelWorkTiles {
    bool are_key_tiles = false;  ///< key tiles of a kv head, for all its query heads; else query tiles of a query head
    TileShape tile;
    std::vector<int> shared_by{};  ///< how many thread blocks may share a work tile, besides one
};

/// A family of attention kernels. All families compute the same; they differ in the devices, head dims and tensors that
/// they take, and in speed. A family registers itself at start-up by a KernelFamilyRegistration, so generic code
/// includes no header of a family.
class KernelFamily {
public:
    virtual ~KernelFamily() = default;

    virtual std::string name() const = 0;

    /// resolve() prefers the family with the highest one, of those that take the problem and run on the device.
    virtual int preference() const = 0;

    /// Empty if the current device can run the family, otherwise the reason, as the end of a sentence.
    virtual std::string why_not_on_this_device() const = 0;

    /// Whether it has kernels for these dims. Throws Error if one is not from 1 to 256.
    virtual bool takes_dims(std::int64_t head_dim, std::int64_t value_dim) const = 0;

    /// Up to how many query rows its forward pass splits the keys over thread blocks (split-KV decoding); 0 for never.
    /// It does so for a batch of sequences, too, of which no more rows than that see a key.
    virtual std::int64_t split_kv_rows() const { return 0; }

    virtual KernelWorkTiles work_tiles(layouts::Pass pass, std::int64_t head_dim, std::int64_t value_dim) const = 0;
    virtual WorkListPlan plan(const WorkListOptions& options, const WorkListRows& rows) const = 0;

    /// gpu::attend_forward() and gpu::attend_backward() with a work list of this family.
    virtual void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) const = 0;
    virtual void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream) const = 0;

    /// Whether one launch can do several blocks: make_fused().
    virtual bool can_fuse() const { return false; }
    /// See FusedWork. Throws Error if the family cannot fuse.
    virtual std::unique_ptr<FusedWork> make_fused(const layouts::Mask& mask, std::shared_ptr<const RowBounds> rows,
                                                  std::span<const FusedBlock> blocks,
                                                  const FusedOptions& options) const;

    /// Whether make_merging() takes launches with these work lists and so many peers, while as many ranks as
    /// `ranks_on_device` have such a launch on this device.
    virtual bool can_merge(const AttendShape& shape, std::span<const WorkList* const> work, std::size_t peers,
                           int ranks_on_device) const {
        static_cast<void>(shape), static_cast<void>(work), static_cast<void>(peers), static_cast<void>(ranks_on_device);
        return false;
    }
    /// See MergingArgs. Throws Error if the family cannot merge.
    virtual MergingWork make_merging(const MergingArgs& args) const;
};

/// Adds a family to kernel_families(). A constant at namespace scope of the family's source file.
struct KernelFamilyRegistration {
    explicit KernelFamilyRegistration(std::unique_ptr<const KernelFamily> family);
};

/// All families, the preferred one first.
std::vector<const KernelFamily*> kernel_families();

/// The family of that name, or null for "auto". Throws Error if there is none.
const KernelFamily* kernel_family(std::string_view name);

/// The family that will compute on the current device: the preferred one, or from `asked` on in that order, which takes
/// the dims. Throws Error if the device cannot run the one asked for.
const KernelFamily& resolve(const KernelFamily* asked, std::int64_t head_dim, std::int64_t value_dim);

/// The same for the dims of a problem.
const KernelFamily& resolve(const KernelFamily* asked, const layouts::Problem& problem);

}  // namespace ringlab::gpu
