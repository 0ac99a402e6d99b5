#pragma once

#include "gpu/kernels/common/dropout_params.hpp"

#include <cstdint>

// Which pairs of a tile are dropped (layouts/problem/dropout.hpp), for kernels whose products have the accumulators of
// mma.sync and wgmma: with g = lane / 4 and t = lane % 4 a thread has rows g and g + 8 of 16 and columns 2t and 2t + 1
// of each eight.
//
// Where the positions of a tile form whole patches, each lane draws other patches than its neighbours. Lanes then
// exchange bits, not words of the generator: 8 bits of each of 4 patches (rows are queries) or 4 bits of each of 8
// (rows are keys). Other tiles, such as those of striped layouts, are drawn pair by pair, which takes several times as
// long as everything else. All lanes of a warp go the same way.

namespace ringlab::gpu::device {

/// Draws for one head.
struct HeadDraw {
    const layouts::DropoutDraw& draw;
    std::uint32_t batch, head;

    __device__ HeadDraw(const DropoutParams& dropout, int batch, int head)
        : draw(dropout.draw),
          batch(static_cast<std::uint32_t>(batch)),
          head(static_cast<std::uint32_t>(dropout.first_head + head)) {}
    __device__ __forceinline__ std::uint32_t kept(int query, int key) const {
        return draw.kept(batch, head, static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(key));
    }
    __device__ __forceinline__ std::uint32_t keeps(int query, int key) const {
        return draw.keeps(batch, head, static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(key));
    }
};

/// Bytes of `a` (0 to 3) and `b` (4 to 7), chosen by the nibbles of `selector`; the top bit of a nibble asks for the
/// byte's sign instead, eight times.
__device__ __forceinline__ std::uint32_t choose_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
    std::uint32_t x;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(selector));
    return x;
}

/// Transposes bytes over four lanes whose numbers differ in bits `distance` and 2 * `distance`: byte j of lane i
/// becomes byte i of lane j.
template <int distance>
__device__ __forceinline__ std::uint32_t transpose_bytes(std::uint32_t x, int lane) {
    x = choose_bytes(x, __shfl_xor_sync(~0u, x, distance), lane & distance ? 0x3715 : 0x6240);
    return choose_bytes(x, __shfl_xor_sync(~0u, x, 2 * distance), lane & 2 * distance ? 0x3276 : 0x5410);
}

/// Transposes nibbles over the eight lanes with the same lane % 4: nibble j of the i-th becomes nibble i of the j-th.
__device__ __forceinline__ std::uint32_t transpose_nibbles(std::uint32_t x, int lane) {
    const std::uint32_t other = __shfl_xor_sync(~0u, x, 4);
    x = lane & 4 ? (x & 0xf0f0f0f0) | (other >> 4 & 0x0f0f0f0f) : (x & 0x0f0f0f0f) | (other << 4 & 0xf0f0f0f0);
    return transpose_bytes<8>(x, lane);
}

constexpr int unseen_key = 0x7fffffff;  // in KeyPositions: it may stand for any key, because no row sees it
__device__ __forceinline__ bool is_at(int position, int expected) {
    return position == expected || position == unseen_key;
}

/// For rows that are queries: a byte for each 16 of `keys` keys, which holds the bits of the thread's pairs: bit
/// 4 c + 2 h + r for row g + 8 r and column 8 h + 2 t + c of the 16. `query`: positions of the two rows; four_keys(i):
/// positions of keys 4 i to 4 i + 3; two_keys(n): of the thread's two keys of eight n.
template <int keys, class FourKeys, class TwoKeys>
__device__ __forceinline__ void draw_rows(std::uint32_t (&kept)[(keys + 63) / 64], const HeadDraw& draw, int2 query,
                                          int lane, FourKeys four_keys, TwoKeys two_keys) {
    constexpr int words = (keys + 63) / 64;
    const int4 four = four_keys(lane % (keys / 4));
    int first = min(min(four.x, four.y), min(four.z, four.w));
    first = min(first, __shfl_xor_sync(~0u, first, 1));
    first = min(first, __shfl_xor_sync(~0u, first, 2)) / 16 * 16;
    const int own = first + lane % 4 * 4;
    const bool fits = query.y == query.x + 8 && query.x / 8 % 2 == 0 && is_at(four.x, own) && is_at(four.y, own + 1) &&
                      is_at(four.z, own + 2) && is_at(four.w, own + 3);
    if (__all_sync(~0u, fits)) {
#pragma unroll
        for (int word = 0; word < words; ++word) {
            const int block = min(4 * word + lane % 4, keys / 16 - 1);
            kept[word] = transpose_bytes<1>(draw.kept(query.x, __shfl_sync(~0u, first, 4 * block)), lane);
        }
        return;
    }
#pragma unroll
    for (int word = 0; word < words; ++word) {
        kept[word] = 0;
#pragma unroll 1
        for (int n = 8 * word; n < min(8 * word + 8, keys / 8); ++n) {
            const int2 key = two_keys(n);
#pragma unroll 1
            for (int i = 0; i < 4; ++i)
                kept[word] |= draw.keeps(i % 2 ? query.y : query.x, i / 2 ? key.y : key.x)
                              << (n / 2 % 4 * 8 + i / 2 * 4 + n % 2 * 2 + i % 2);
        }
    }
    __syncwarp();
}

/// For rows that are keys: the position of the first of a warp's 16 keys, of which `key` are the thread's, or -1 if
/// they are not 16 keys of a patch.
__device__ __forceinline__ int first_of_patch(int2 key, int lane) {
    const int smallest = min(key.x, key.y);
    const int first = static_cast<int>(__reduce_min_sync(~0u, static_cast<unsigned>(smallest))) / 16 * 16;
    const bool fits = is_at(key.x, first + lane / 4) && is_at(key.y, first + lane / 4 + 8);
    return __all_sync(~0u, fits) ? first : -1;
}

/// For rows that are keys, with `rows` queries (16, 32 or 64) as columns: a byte for each 16 queries, which holds the
/// bits of the thread's pairs: bit 4 c + 2 r + h for row g + 8 r and column 8 h + 2 t + c of the 16. `first_key`:
/// first_of_patch(key). query_at(i): position of query i.
template <int rows, class QueryAt>
__device__ __forceinline__ std::uint32_t draw_columns(const HeadDraw& draw, int2 key, int first_key, int lane,
                                                      QueryAt query_at) {
    static_assert(rows == 16 || rows == 32 || rows == 64);
    const int own = 2 * (lane % (rows / 2)), x = query_at(own), y = query_at(own + 1);
    const int first = __shfl_sync(~0u, x, lane / 8 * 8);
    const bool fits = first_key >= 0 && first % 16 == 0 && x == first + own % 16 && y == x + 1;
    if (__all_sync(~0u, fits)) {
        const int block = lane / 8 % (rows / 16), place = lane % 4 * 2 + lane / 4 % 2;
        return transpose_nibbles(draw.kept(__shfl_sync(~0u, first, 8 * block) + place, first_key), lane);
    }
    std::uint32_t kept = 0;
#pragma unroll 1
    for (int i = 0; i < rows / 2; ++i) {
        const int block = i / 8, c = i / 4 % 2, r = i / 2 % 2, h = i % 2;
        kept |= draw.keeps(query_at(16 * block + 8 * h + lane % 4 * 2 + c), r ? key.y : key.x) << i;
    }
    __syncwarp();
    return kept;
}

/// For element c of eight n of an accumulator, in the order (row g, column 2 t), (g, 2 t + 1), (g + 8, 2 t),
/// (g + 8, 2 t + 1): its bit in byte n / 2 of draw_rows() or draw_columns().
constexpr int bit_of_row(int n, int c) { return c % 2 * 4 + n % 2 * 2 + c / 2; }
constexpr int bit_of_column(int n, int c) { return c % 2 * 4 + c / 2 * 2 + n % 2; }

/// All ones in the low half if bit `bit` (0 to 3) of byte `byte` is 1, and in the high half if bit 4 + `bit` is: for
/// two neighbours of 16 bits.
__device__ __forceinline__ std::uint32_t mask_of_pair(std::uint32_t kept, int byte, int bit) {
    return choose_bytes(kept << (7 - bit), kept << (3 - bit), 0xcc88 + 0x1111 * byte);
}
/// x, or 0 if bit `bit` (0 to 7) of byte `byte` is 0.
__device__ __forceinline__ float if_kept(float x, std::uint32_t kept, int byte, int bit) {
    const std::uint32_t shifted = kept << (7 - bit);
    return __uint_as_float(__float_as_uint(x) & choose_bytes(shifted, shifted, 0x8888 + 0x1111 * byte));
}

}  // namespace ringlab::gpu::device
