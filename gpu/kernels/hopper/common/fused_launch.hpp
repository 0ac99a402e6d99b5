#pragma once

#include "gpu/kernels/common/params.hpp"

#include <cuda.h>

#include <cstdint>

namespace ringlab::gpu::hopper {

/// A K/V block of a fused launch, or some kv heads of one, in device memory.
struct alignas(128) FusedLaunchBlock {
    CUtensorMap k, v;            // boxes of a tile's keys
    const std::uint32_t* ready;  // has the pass's number once the block has arrived; null: it is there from the start
    const std::uint32_t* gradient_ready;  // likewise, once dk and dv may be touched; null: from the start
    std::uint32_t* ended;  // counts thread blocks that have written their part of dk and dv; null: nothing waits for it
    Elements dk, dv;       // backward
    int first_tile;        // of its keys, among those of all blocks
    int tokens, first_head;
    bool adds;  // to dk and dv
};

/// What the kernels need to know of a fused launch over several blocks. Work lists then number the key tiles of all
/// blocks consecutively; each block starts at a new tile.
struct FusedLaunch {
    const FusedLaunchBlock* blocks;  // null: one block, that of the launch's own maps
    /// Forward: the first work tile of each query tile, and the end of the last one's. A work tile's first number is
    /// tile + 65536 * place, for the block at place * groups + kv head / heads. Backward: the fourth number is the
    /// block.
    const int* first_parts;
    int groups, heads;        // of kv heads; heads of each
    int head_by_head;         // number of query tiles that are assigned head by head; the others follow tile by tile
    std::uint32_t pass;       // number of the pass
    std::uint32_t* late;      // not 0: a block did not arrive in time
    std::uint32_t* reported;  // in host memory: 2 * late block + 1; + 2 if its gradient is late
    std::uint64_t most_nanoseconds;
};

}  // namespace ringlab::gpu::hopper
