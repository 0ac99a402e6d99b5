#pragma once

#include "gpu/kernels/common/tile_config.hpp"
#include "gpu/kernels/common/params.hpp"
#include "gpu/kernels/pairs.hpp"

// Forward pass of few query rows over many keys, as in decoding: thread blocks split the keys.

namespace ringlab::gpu::hopper {

/// Each warp processes 16 keys at a time and has `stages` loads of 16 keys in flight. It takes 100 KB or more in flight
/// per SM to hide the latency of memory. Registers: Q head / 4, O value / 2.
template <DimClass C>
struct SplitKvConfig : Dims<C> {
    static constexpr int rows = 16, warps = 8, warp_keys = 16, keys = warps * warp_keys, stages = 3;
};
template <>
struct SplitKvConfig<DimClass::d64> : Dims<DimClass::d64> {
    static constexpr int rows = 16, warps = 8, warp_keys = 16, keys = warps * warp_keys, stages = 6;
};
template <>
struct SplitKvConfig<DimClass::d192_128> : Dims<DimClass::d192_128> {
    static constexpr int rows = 16, warps = 4, warp_keys = 16, keys = warps * warp_keys, stages = 5;
};
template <>
struct SplitKvConfig<DimClass::d256> : Dims<DimClass::d256> {
    static constexpr int rows = 16, warps = 4, warp_keys = 16, keys = warps * warp_keys, stages = 3;
};

/// Most query tokens of a rank for this kernel. Of a batch of sequences: most that see a key on average, and most of
/// all (4 of each of 64 sequences).
constexpr std::int64_t most_split_kv_rows = 16, most_split_kv_tokens = 256;

/// A row group is this many rows (query tokens and heads) of a kv head: those of one product.
constexpr std::int64_t split_kv_group_rows = 16;

/// Query tokens of a work tile: as many as a row group has, or one if that has more query heads.
constexpr std::int64_t split_kv_tile_tokens(std::int64_t query_heads_per_kv_head) {
    return query_heads_per_kv_head > split_kv_group_rows ? 1 : split_kv_group_rows / query_heads_per_kv_head;
}

/// Row groups of a work tile, for each kv head. Each reads all keys of the tile.
constexpr std::int64_t row_groups_of_tile(std::int64_t tile_tokens, std::int64_t query_heads_per_kv_head) {
    return (tile_tokens * query_heads_per_kv_head + split_kv_group_rows - 1) / split_kv_group_rows;
}

/// Query rows of one rank, and the key tiles that they see.
struct SplitKvRows {
    Input q;
    const int4* bounds;  // of each token, as Geometry::row_bounds
    int tokens;
    int tile_tokens;  // of a work tile
    int row_groups;   // of all work tiles, heads and batch elements
    Items work;
};

struct SplitKvLaunch {
    ForwardParams forward;  // its own q and work are not used
    SplitKvRows rows;
};

/// The same, with rows of other ranks: see MergingArgs.
struct MergingLaunch {
    static constexpr int most_peers = 7;

    struct Other {
        SplitKvRows rows;  // its q has no data, ...
        const Pair* q;     // ... which comes here
        ResultPairs result;
    };

    ForwardParams forward;  // of the own rows, first and last
    SplitKvRows rows;
    Pair* messages[most_peers];  // where peers want the own rows
    Other others[most_peers];
    ResultPairs results[most_peers];
    int message_count, other_count, result_count;
    int merging_clusters;  // at the end of the grid: see merge_rows()
    ResultPairs own;       // the own result, if there are others to merge with
    std::uint32_t number;  // of the launch, in all pairs
    std::uint32_t* late;
    std::uint32_t* reported;
    std::uint64_t most_nanoseconds;
};
static_assert(sizeof(MergingLaunch) <= 4096, "parameters of a kernel");

/// The forward kernel for launch.rows. Data and strides of tensors must be multiples of 16 bytes. `blocks` thread
/// blocks (1, 2, 4 or 8) split the key tiles of each row group.
template <DimClass dims, class Launch>
void launch_split_kv(const Launch& launch, int blocks, DType dtype, cudaStream_t stream);

}  // namespace ringlab::gpu::hopper
