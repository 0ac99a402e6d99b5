#pragma once

// What the producer and the consumers of the forward kernel have in common: shared memory, and how they go round in it.

#include <cstdint>

namespace ringlab::gpu::hopper {

/// Places of a ring of buffers, with the parity of the current round.
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

/// Whether what tests of elements need is staged: bounds of a unit's rows come with its Q, positions of a partial
/// tile's keys with its K, and Q as soon as its unit is known, for which there must be a second stage. Else all
/// warpgroups wait for them at once where a unit begins. Pairs lose by it: their producer has no registers left.
template <class Config, bool pairs>
constexpr bool stages_tests = Config::q_stages > 1 && !pairs;

template <class Config>
struct ForwardShared {
    static constexpr int q_bytes = Config::rows * Config::head * 2;
    static constexpr int k_bytes = Config::keys * Config::head * 2, v_bytes = Config::keys * Config::value * 2;
    static constexpr int unit_slots = 2;

    // Offsets. Tiles start at multiples of 1024.
    static constexpr int q = 0, k = q + Config::q_stages * q_bytes, v = k + Config::stages * k_bytes;
    static constexpr int units = v + Config::stages * v_bytes;  // Unit
    static constexpr int barriers = units + unit_slots * 32;
    static constexpr int k_full = barriers, k_empty = k_full + 8 * Config::stages;
    static constexpr int v_full = k_empty + 8 * Config::stages, v_empty = v_full + 8 * Config::stages;
    static constexpr int unit_full = v_empty + 8 * Config::stages, unit_empty = unit_full + 8 * unit_slots;
    static constexpr int q_full = unit_empty + 8 * unit_slots, q_empty = q_full + 8 * Config::q_stages;
    static constexpr int next = q_empty + 8 * Config::q_stages;  // what the first block of a pair tells the second
    static constexpr int next_full = next + 8, next_empty = next_full + 8;
    // If stages_tests: int4 for each row of a stage of Q, int for each key of a stage of K.
    static constexpr int bounds_bytes = Config::rows * 16, positions_bytes = Config::keys * 4;
    static constexpr int bounds = (next_empty + 8 + 15) / 16 * 16;
    static constexpr int positions = bounds + Config::q_stages * bounds_bytes;
    static constexpr int bytes = stages_tests<Config, false> ? positions + Config::stages * positions_bytes : bounds;
};

/// What the producer tells the consumers: a unit, or a part of one.
struct __align__(32) Unit {
    int tile;                     // of queries; -1: no more units
    int begin, partial_end, end;  // of the list's entries
    int head, batch;
    bool last;  // part of its unit
};

}  // namespace ringlab::gpu::hopper
