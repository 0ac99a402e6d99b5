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

/// The keys that each query row of a rank sees, as global positions in device memory. Made once per rank and pass.
class RowBounds {
public:
    /// Uploads 16 bytes per row. Throws Error if the mask has 2^31 - 1 tokens or more, or shows a row more than one
    /// interval of keys and the first keys, as joins of shared-question may.
    RowBounds(const layouts::Mask& mask, std::span<const layouts::Run> queries,
              DeviceMemory& memory = DeviceMemory::plain());

    std::int64_t tokens() const { return tokens_; }
    std::int64_t seeing_tokens() const { return seeing_tokens_; }  ///< up to the last row that sees something
    std::span<const layouts::Run> runs() const { return runs_; }

    /// (begin, end, sink, position) per row, followed by rows that see nothing up to whole tiles. A row sees the keys
    /// [begin, end) and [0, sink).
    const std::int32_t* device() const { return device_.as<const std::int32_t>(); }

private:
    std::vector<layouts::Run> runs_;
    std::int64_t tokens_ = 0, seeing_tokens_;
    DeviceBuffer device_;
};

/// `count` positions: the global position of each key, and for a key that is not valid, or past the last key, a
/// position that no row sees.
std::vector<std::int32_t> key_positions(const layouts::Mask& mask, std::span<const layouts::Run> keys,
                                        std::int64_t count);

/// The positions of a block's keys, in device memory. Made once per block and pass.
class KeyPositions {
public:
    /// Uploads 4 bytes per key. Throws Error if the mask has 2^31 - 1 tokens or more.
    KeyPositions(const layouts::Mask& mask, std::span<const layouts::Run> keys,
                 DeviceMemory& memory = DeviceMemory::plain());

    std::int64_t tokens() const { return tokens_; }
    std::span<const layouts::Run> runs() const { return runs_; }

    /// Padded to whole tiles.
    const std::int32_t* device() const { return device_.as<const std::int32_t>(); }

private:
    std::vector<layouts::Run> runs_;
    std::int64_t tokens_ = 0;
    DeviceBuffer device_;
};

/// The side whose tile a thread block keeps while it goes over the tiles of the other side.
enum class Major { queries, keys };

/// The work tiles of one side, in ascending order, each with the tiles of the other side that it processes. In host
/// memory.
struct Tiles {
    /// One work tile: (tile, first entry, end of entries, end of its partial entries, which come first).
    std::vector<std::array<std::int32_t, 4>> items;
    /// 2 * tile of the other side + (1 if partial), in ascending order for each work tile. For query tiles the partial
    /// entries come first, so that the loop over full ones has no test. Neighbours with equal entries may share them.
    std::vector<std::int32_t> entries;
    std::int64_t full = 0, partial = 0;  ///< entries whose pairs are all visible, and entries with a mask's edge
    std::int64_t other_side = 0;         ///< tiles of the other side in all
};

/// Whether work tiles with equal entries share them in memory. Away from a mask's edges all entries are equal, and
/// apart they would grow with the square of the number of tiles. With semaphores every entry has a value of its own, so
/// entries must be apart.
enum class EqualEntries { shared, apart };

/// How the rows of a query tile are compared with a key tile: all at once, or one by one. The latter leaves out key
/// tiles between those that different rows see, as those of other sequences in a batch. It takes longer, and is for
/// query tiles of few rows.
enum class RowsOfTile { together, apart };

Tiles find_tiles(const layouts::Mask& mask, std::span<const layouts::Run> queries, std::span<const layouts::Run> keys,
                 TileShape shape, Major major, EqualEntries equal, RowsOfTile compared = RowsOfTile::together);
void longest_first(std::span<std::array<std::int32_t, 4>> items);
/// Puts work tiles that all have entries, the longest first, in the order of layouts::row_groups_of(). Returns the
/// number of groups.
std::int64_t group_by_last_entry(std::span<std::array<std::int32_t, 4>> items, std::span<const std::int32_t> entries);
/// layouts::fall_linearly() of work tiles that all have entries, the longest first.
bool fall_linearly(std::span<const std::array<std::int32_t, 4>> items, std::span<const std::int32_t> entries);

/// The work tiles in device memory, the longest first, so that short ones fill the gaps at the end of the launch.
/// Or, with `grouped`, by group_by_last_entry().
class TileList {
public:
    TileList(const layouts::Mask& mask, std::span<const layouts::Run> queries, std::span<const layouts::Run> keys,
             TileShape shape, Major major, bool with_semaphores = false, bool grouped = false,
             RowsOfTile compared = RowsOfTile::together, DeviceMemory& memory = DeviceMemory::plain());

    /// All work tiles, and those that have entries. The latter come first, the longest of them leading.
    std::int64_t items() const { return items_; }
    std::int64_t busy_items() const { return busy_items_; }
    std::int64_t longest() const { return longest_; }  ///< entries of the first work tile
    std::int64_t full() const { return full_; }        ///< tile pairs whose pairs are all visible
    std::int64_t partial() const { return partial_; }  ///< tile pairs with a mask's edge
    /// layouts::fall_linearly() of the work tiles that have entries.
    bool fall_linearly() const { return falls_linearly_; }
    std::int64_t row_groups() const { return row_groups_; }  ///< see group_by_last_entry()

    const std::int32_t* device_items() const { return items_device_.as<const std::int32_t>(); }
    const std::int32_t* device_entries() const { return entries_device_.as<const std::int32_t>(); }
    /// For each entry the number of earlier work tiles with an entry for the same tile of the other side: the value of
    /// that tile's semaphore at which this work tile may add to it. Null unless asked for.
    const std::int32_t* device_semaphore_values() const { return semaphore_values_.as<const std::int32_t>(); }

    std::int64_t device_bytes() const;

private:
    std::int64_t items_ = 0, busy_items_ = 0, longest_ = 0, full_ = 0, partial_ = 0;
    bool falls_linearly_ = false;
    std::int32_t row_groups_ = 1;
    DeviceBuffer items_device_, entries_device_, semaphore_values_;
};

/// The tiles of one launch, over the rows of one rank and the keys of one block: which of them the mask makes empty
/// (and skipped), full or partial. It depends on neither heads nor batch, so it is built once, before the pass,
/// and serves every head group, layer and repeat.
///
/// The host classifies the tiles, about 10 ns per pair of tiles that may see each other, and uploads them.
class WorkList {
public:
    /// Made for the family that resolve() chooses on the current device.
    WorkList(const layouts::Mask& mask, std::shared_ptr<const RowBounds> rows, std::shared_ptr<const KeyPositions> keys,
             const WorkListOptions& options);

    const RowBounds& rows() const { return *rows_; }
    const KeyPositions& keys() const { return *keys_; }
    const WorkListOptions& options() const { return options_; }

    /// The family that resolve() has chosen.
    const KernelFamily& family() const { return *options_.family; }

    /// Query tokens of a work tile, or of a tile that it goes over; and WorkListPlan::splits_kv.
    int tile_tokens() const { return tile_tokens_; }
    bool splits_kv() const { return splits_kv_; }

    /// Forward: query tiles. Backward: key tiles, for dk and dv (and for dq, unless there are query_tiles()).
    const TileList& tiles() const { return tiles_; }
    /// Backward: query tiles of the kernel that computes dq alone; null if the family has no such kernel for the work.
    const TileList* query_tiles() const { return query_tiles_.get(); }

    /// A counter in device memory that is 0 between launches. Each launch gets the next one of a few, so that launches
    /// of several streams may run at the same time. The family must have asked for counters.
    std::uint32_t* next_counter() const;

private:
    WorkList(const layouts::Mask& mask, std::shared_ptr<const RowBounds> rows, std::shared_ptr<const KeyPositions> keys,
             const WorkListOptions& options, const WorkListPlan& plan);

    std::shared_ptr<const RowBounds> rows_;
    std::shared_ptr<const KeyPositions> keys_;
    WorkListOptions options_;
    int tile_tokens_;
    bool splits_kv_;
    TileList tiles_;
    std::unique_ptr<TileList> query_tiles_;
    std::size_t counter_count_ = 0;
    DeviceBuffer counters_;
    mutable std::atomic<std::uint32_t> launches_ = 0;
};

}  // namespace ringlab::gpu
