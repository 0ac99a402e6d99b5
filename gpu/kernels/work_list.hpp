#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "layouts/layouts/layout.hpp"
#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

namespace ringlab::gpu {

std::int64_t count_tokens(std::span<const layouts::Run> runs);

/// What each local query row sees, in global positions, on the current device: made once per rank and pass.
class RowBounds {
public:
    /// Uploads 16 bytes per row and waits for it. Throws Error if the mask has 2^31 - 1 tokens or more, or shows a row
    /// more than one interval of keys and the first keys, as joins of shared-question may.
    RowBounds(const layouts::Mask& mask, std::span<const layouts::Run> queries);

    std::int64_t tokens() const { return tokens_; }
    std::span<const layouts::Run> runs() const { return runs_; }

    /// (begin, end, sink, position) per row; padded to whole tiles with rows that see nothing.
    const std::int32_t* device() const { return device_.as<const std::int32_t>(); }

private:
    std::vector<layouts::Run> runs_;
    std::int64_t tokens_ = 0;
    DeviceBuffer device_;
};

/// The global position of each key, and one that no row sees of a key that is not valid and from the last key up to
/// `places`.
std::vector<std::int32_t> key_positions(const layouts::Mask& mask, std::span<const layouts::Run> keys,
                                        std::int64_t places);

/// The same of a block, on the current device: made once per block and pass.
class KeyPositions {
public:
    /// Uploads 4 bytes per key and waits for it. Throws Error if the mask has 2^31 - 1 tokens or more.
    KeyPositions(const layouts::Mask& mask, std::span<const layouts::Run> keys);

    std::int64_t tokens() const { return tokens_; }
    std::span<const layouts::Run> runs() const { return runs_; }

    /// Padded to whole tiles.
    const std::int32_t* device() const { return device_.as<const std::int32_t>(); }

private:
    std::vector<layouts::Run> runs_;
    std::int64_t tokens_ = 0;
    DeviceBuffer device_;
};

/// Which side a thread block stays on.
enum class Major { queries, keys };

/// Tiles of one side, in ascending order, each with the tiles of the other side that it has to work on; in host memory.
struct Tiles {
    /// (tile, first entry, end of entries, end of the partial ones at their beginning) per item.
    std::vector<std::array<std::int32_t, 4>> items;
    /// 2 * tile of the other side + (1 if partial), in ascending order for each item; by query tiles the partial ones
    /// come first, so that a loop over full ones need not ask. Neighbours with the same entries may share them.
    std::vector<std::int32_t> entries;
    std::int64_t full = 0, partial = 0;  ///< entries that need no test of their elements, and those that do
    std::int64_t other_side = 0;         ///< tiles of the other side in all
};

/// Whether items with the same entries may share them: away from a mask's edges all are alike, and their entries would
/// grow with the square of the tiles. Not where every entry of every item has a turn of its own.
enum class EqualEntries { shared, apart };

Tiles find_tiles(const layouts::Mask& mask, std::span<const layouts::Run> queries, std::span<const layouts::Run> keys,
                 TileShape shape, Major major, EqualEntries equal);
void longest_first(std::span<std::array<std::int32_t, 4>> items);
/// layouts::fall_linearly of `items` that have something to do and come longest first.
bool fall_linearly(std::span<const std::array<std::int32_t, 4>> items, std::span<const std::int32_t> entries);

/// Backward, hopper: thread blocks that are to share an item on the current device: 1, 2, 4 or 8.
int blocks_per_item(const layouts::BackwardLoad& load);

/// The same in device memory, longest item first: the short ones fill the gaps at the end of the launch.
class TileList {
public:
    using Major = gpu::Major;

    TileList(const layouts::Mask& mask, std::span<const layouts::Run> queries, std::span<const layouts::Run> keys,
             TileShape shape, Major major, bool with_turns = false);

    /// Tiles in all, and those among them that have anything to do; they come first, those with most work leading.
    std::int64_t items() const { return items_; }
    std::int64_t busy_items() const { return busy_items_; }
    std::int64_t longest() const { return longest_; }  ///< entries of the first item
    std::int64_t full() const { return full_; }        ///< tile pairs that need no test of their elements
    std::int64_t partial() const { return partial_; }  ///< tile pairs that do
    /// layouts::fall_linearly of those that have anything to do.
    bool fall_linearly() const { return fall_evenly_; }

    const std::int32_t* device_items() const { return items_device_.as<const std::int32_t>(); }
    const std::int32_t* device_entries() const { return entries_device_.as<const std::int32_t>(); }
    /// If asked for, beside each entry how many items before its own have one for the same tile of the other side.
    const std::int32_t* device_turns() const { return turns_device_.as<const std::int32_t>(); }

    std::int64_t device_bytes() const;

private:
    std::int64_t items_ = 0, busy_items_ = 0, longest_ = 0, full_ = 0, partial_ = 0;
    bool fall_evenly_ = false;
    DeviceBuffer items_device_, entries_device_, turns_device_;
};

/// All that one launch has to know of a mask over the rows of one rank and the keys of one block: which tiles are empty
/// (skipped), full or partial. Depends on neither heads nor batch; build it once, before the pass, and use it for every
/// head group, layer and repeat.
///
/// Building it waits for the device: classification is on the host, some 10 ns a tile pair, then an upload.
class WorkList {
public:
    struct Options {
        layouts::Pass pass = layouts::Pass::forward;
        std::int64_t head_dim = 128;
        std::int64_t value_dim = 128;
        bool deterministic = false;  ///< backward: dq in a fixed order too
        /// Whose tiles the list is made of; options() of a list tells the one that was chosen. A list for the hopper
        /// family takes only tensors whose data and strides are multiples of 16 bytes.
        KernelFamily family = KernelFamily::automatic;
    };

    WorkList(const layouts::Mask& mask, std::shared_ptr<const RowBounds> rows, std::shared_ptr<const KeyPositions> keys,
             const Options& options);

    const RowBounds& rows() const { return *rows_; }
    const KeyPositions& keys() const { return *keys_; }
    const Options& options() const { return options_; }

    /// Forward: query tiles. Backward: key tiles, for dk and dv (and dq, unless deterministic).
    const TileList& tiles() const { return tiles_; }
    /// Backward, deterministic, portable: query tiles, for dq. Otherwise null.
    const TileList* query_tiles() const { return query_tiles_.get(); }

    /// Hopper, forward: made for the kernel that spreads the keys of a few rows over thread blocks.
    bool has_few_rows() const;

    /// Hopper: a counter on the device that is 0 between launches. Launches take turns with a few, so that those of
    /// several streams may be under way together.
    std::uint32_t* next_counter() const;

private:
    std::shared_ptr<const RowBounds> rows_;
    std::shared_ptr<const KeyPositions> keys_;
    Options options_;
    TileList tiles_;
    std::unique_ptr<TileList> query_tiles_;
    DeviceBuffer counters_;
    mutable std::atomic<std::uint32_t> launches_ = 0;
};

}  // namespace ringlab::gpu
