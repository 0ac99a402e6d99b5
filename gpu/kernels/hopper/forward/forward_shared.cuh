#pragma once

// What the producer and the consumers of the forward kernel share: the layout of shared memory, and its rings of
// buffers.

#include <cstdint>

namespace ringlab::gpu::hopper {

/// A position in a ring of buffers, and the parity of the current round.
template <int count>
struct Ring {
    int place = 0;
    std::uint32_t parity = 0;

    __device__ __forceinline__ void advance() {
        if (++place == count) {
            place = 0;
            parity ^= 1;
        }
    }
};

/// Whether the data that tests of elements need is loaded into shared memory beforehand ("staged"): the bounds of rows
/// come with Q of a work tile, and the positions of keys with K of a partial tile. Q is then loaded as soon as its work
/// tile is known, which needs a second stage of Q. Without staging, all warpgroups wait for these loads at once when a
/// work tile begins.
template <class Config>
constexpr bool stages_tests = Config::q_stages > 1;

template <class Config>
struct ForwardShared {
    static constexpr int q_bytes = Config::rows * Config::head * 2;
    static constexpr int k_bytes = Config::keys * Config::head * 2, v_bytes = Config::keys * Config::value * 2;
    static constexpr int unit_slots = 2;

    // The carry of a work tile comes in boxes of 32 columns. As many as fit lie where its Q was, and one more in memory
    // of its own. The consumers load the other columns. Without staging there are no boxes.
    static constexpr int box_columns = 32, box_bytes = Config::rows * box_columns * 4;
    static constexpr int boxes_in_q = stages_tests<Config> ? q_bytes / box_bytes : 0;
    static constexpr int boxes = stages_tests<Config> ? boxes_in_q + 1 : 0;
    static_assert(boxes == 0 || Config::q_stages == 2, "a work tile's Q and that of the next, whose place differs");

    // Offsets. Tiles start at multiples of 1024.
    static constexpr int q = 0, k = q + Config::q_stages * q_bytes, v = k + Config::stages * k_bytes;
    static constexpr int last_box = v + Config::stages * v_bytes;
    static constexpr int units = last_box + (boxes - boxes_in_q) * box_bytes;  // Unit
    static constexpr int barriers = units + unit_slots * 32;
    static constexpr int k_full = barriers, k_empty = k_full + 8 * Config::stages;
    static constexpr int v_full = k_empty + 8 * Config::stages, v_empty = v_full + 8 * Config::stages;
    static constexpr int unit_full = v_empty + 8 * Config::stages, unit_empty = unit_full + 8 * unit_slots;
    static constexpr int q_full = unit_empty + 8 * unit_slots, q_empty = q_full + 8 * Config::q_stages;
    static constexpr int boxes_free = q_empty + 8 * Config::q_stages, boxes_full = boxes_free + 8;
    // If stages_tests: int4 for each row of a stage of Q, int for each key of a stage of K.
    static constexpr int bounds_bytes = Config::rows * 16, positions_bytes = Config::keys * 4;
    static constexpr int bounds = (boxes_full + 8 + 15) / 16 * 16;
    static constexpr int positions = bounds + Config::q_stages * bounds_bytes;
    static constexpr int bytes = stages_tests<Config> ? positions + Config::stages * positions_bytes : bounds;

    /// Where box i of the carry lies, of the work tile whose Q is or was at `q_place`.
    __device__ static int box(int i, int q_place) {
        return i < boxes_in_q ? q + q_place * q_bytes + i * box_bytes : last_box;
    }
};

/// What the producer announces to the consumers: a work tile or, in a fused launch, a part of one.
struct __align__(32) Unit {
    int tile;                     // query tile; -1: there is no work tile left
    int begin, partial_end, end;  // range of entries of the work list; partial tiles come first
    int head, batch;
    bool last;  // whether it is the last part of its work tile
};

}  // namespace ringlab::gpu::hopper
