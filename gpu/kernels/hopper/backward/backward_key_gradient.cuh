#pragma once

#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/backward/backward_shared.cuh"

// The end of a work tile: dk and dv go from the registers of the computing warps to global memory. If a cluster shares
// the work tile, its thread blocks add their sums through shared memory.

namespace ringlab::gpu::hopper {

using device::pack;
using device::unpack;

/// Where dk and dv go.
struct GradientTarget {
    Elements dk, dv;
    bool adds;
    int fused_block;
    int first_key, key_tokens, batch, head;  // as their tensors count

    __device__ GradientTarget(const BackwardKernelParams& all, const Share& share, int keys) {
        const bool fused = all.fused.blocks != nullptr;
        const FusedLaunchBlock* block = all.fused.blocks + (fused ? share.item.w : 0);
        dk = fused ? block->dk : all.params.dk;
        dv = fused ? block->dv : all.params.dv;
        adds = fused ? block->adds : all.params.adds;
        fused_block = share.item.w;
        first_key = (share.item.x - (fused ? block->first_tile : 0)) * keys;
        key_tokens = fused ? block->tokens : all.params.geometry.key_tokens;
        batch = share.batch;
        head = share.kv_head - (fused ? block->first_head : 0);
    }
};

/// Sums of dk or dv in shared memory, where the tiles were: a row of fp32 for each key, in chunks of four. Chunks are
/// swizzled so that stores of accumulators have no bank conflicts.
template <int dims>
struct KeySums {
    static constexpr int row_bytes = dims * 4, row_chunks = dims / 4;
    __device__ static int place(int row, int chunk) { return row * row_bytes + ((chunk ^ row % 4 * 2) << 4); }

    /// Stores the accumulators of a thread, which begin at the row and column.
    template <int count>
    __device__ __forceinline__ static void give(std::uint32_t sums, const float (&x)[count], int row, int column) {
        const std::uint32_t first = sums + place(row, column / 4) + column % 4 * 4;
#pragma unroll
        for (int n = 0; n < count / 4; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                store_shared_2((first ^ n % 4 * 32) + n / 4 * 128 + r * 8 * row_bytes,
                               make_float2(x[4 * n + 2 * r], x[4 * n + 2 * r + 1]));
    }
};

/// Whether 16-byte accesses to 16-bit elements at multiples of 8 are aligned, or to fp32 at multiples of 4.
__device__ inline bool has_chunks(const Elements& x) {
    const int bytes = x.dtype == DType::fp32 ? 4 : 2;
    return (reinterpret_cast<std::uintptr_t>(x.data) / bytes | static_cast<std::uintptr_t>(x.strides.batch) |
            static_cast<std::uintptr_t>(x.strides.token) | static_cast<std::uintptr_t>(x.strides.head)) %
               (16 / bytes) ==
           0;
}

/// Adds to global memory without reading the old value, so no register waits for it.
__device__ inline void add_pair(float2* to, float2 x) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}

/// Transposes over four lanes: element j of lane i becomes element i of lane j.
__device__ __forceinline__ void transpose(std::uint32_t (&x)[4], int t) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
        const bool upper = t & distance;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & distance) continue;
            std::uint32_t &low = x[i], &high = x[i + distance];
            const std::uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, distance);
            (upper ? low : high) = got;
        }
    }
}

/// Writes the accumulators of a thread, times a factor. They are columns 2 t and 2 t + 1 of each eight from `column`
/// on, of two rows, `row` and the eighth after it. Dims are multiples of 8, so columns exist or not by eights.
template <class T, int count>
__device__ __forceinline__ void write_accumulators(const float (&x)[count], const Elements& result,
                                                   const GradientTarget& target, int row, int column, int t, int dim,
                                                   float factor) {
    constexpr int eights = count / 4;
    const int dims = dim - column;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int key = target.first_key + row + 8 * r;
        const bool exists = key < target.key_tokens;
        const auto index = device::row_index(result.strides, target.batch, key, target.head) + column;
        const auto pair = [&](int n) { return make_float2(x[4 * n + 2 * r] * factor, x[4 * n + 2 * r + 1] * factor); };
        if (result.dtype != DType::fp32 && !target.adds && has_chunks(result)) {
            auto* const to = static_cast<std::uint16_t*>(result.data) + index + 8 * t;
#pragma unroll
            for (int n = 0; n < eights; n += 4) {
                std::uint32_t four[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) four[i] = pack<T>(pair(n + i).x, pair(n + i).y);
                transpose(four, t);
                if (exists && 8 * (n + t) < dims)
                    *reinterpret_cast<uint4*>(to + 8 * n) = make_uint4(four[0], four[1], four[2], four[3]);
            }
            continue;
        }
        if (!exists) continue;
        const auto for_each_pair = [&](auto store) {
#pragma unroll
            for (int n = 0; n < eights; ++n)
                if (8 * n < dims) store(4 * n, pair(n));
        };
        if (result.dtype == DType::fp32) {
            auto* const to = reinterpret_cast<float2*>(static_cast<float*>(result.data) + index + 2 * t);
            target.adds ? for_each_pair([&](int i, float2 sum) { add_pair(to + i, sum); })
                        : for_each_pair([&](int i, float2 sum) { to[i] = sum; });
        } else {  // of the inputs' type
            auto* const to = reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(result.data) + index + 2 * t);
            target.adds ? for_each_pair([&](int i, float2 sum) {
                const float2 there = unpack<T>(to[i]);
                to[i] = pack<T>(there.x + sum.x, there.y + sum.y);
            })
                        : for_each_pair([&](int i, float2 sum) { to[i] = pack<T>(sum.x, sum.y); });
        }
    }
}

/// Writes or adds four values of a row.
template <class T>
__device__ inline void write_four(const Elements& result, std::int64_t index, float4 x, bool adds, bool at_once) {
    const float2 low = make_float2(x.x, x.y), high = make_float2(x.z, x.w);
    if (result.dtype == DType::fp32) {
        auto* const to = reinterpret_cast<float2*>(static_cast<float*>(result.data) + index);
        if (adds) {
            add_pair(to, low);
            add_pair(to + 1, high);
        } else if (at_once) {
            *reinterpret_cast<float4*>(to) = x;
        } else {
            to[0] = low;
            to[1] = high;
        }
        return;
    }
    auto* const to = reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(result.data) + index);
    uint2 bits = make_uint2(pack<T>(low.x, low.y), pack<T>(high.x, high.y));
    if (adds) {
        const float2 old_low = unpack<T>(to[0]), old_high = unpack<T>(to[1]);
        bits = make_uint2(pack<T>(old_low.x + low.x, old_low.y + low.y),
                          pack<T>(old_high.x + high.x, old_high.y + high.y));
    }
    if (at_once) {
        *reinterpret_cast<uint2*>(to) = bits;
    } else {
        to[0] = bits.x;
        to[1] = bits.y;
    }
}

/// Writes this thread block's part of the keys, an equal part for each block of the cluster: the sums of all blocks,
/// times a factor. All computing threads call it.
template <class T, int keys, int dims>
__device__ inline void write_sums(std::uint32_t sums, const Elements& result, const GradientTarget& target, int dim,
                                  float factor) {
    using Sums = KeySums<dims>;
    constexpr int at_a_time = 4;
    const int blocks = blocks_of_cluster(), block = block_of_cluster();
    const int own_keys = keys / blocks, count = own_keys * Sums::row_chunks;
    const bool at_once = has_chunks(result);
    const std::int64_t first = device::row_index(result.strides, target.batch, target.first_key, target.head);
#pragma unroll 1
    for (int begin = static_cast<int>(threadIdx.x) - 128; begin < count; begin += at_a_time * computing_threads) {
        float4 x[at_a_time];
        int place[at_a_time];
#pragma unroll
        for (int i = 0; i < at_a_time; ++i) {
            const int item = min(begin + i * computing_threads, count - 1);
            place[i] = Sums::place(block * own_keys + item / Sums::row_chunks, item % Sums::row_chunks);
            x[i] = load_shared_4(sums + place[i]);
        }
#pragma unroll 1
        for (int distance = 1; distance < blocks; ++distance) {
            const std::uint32_t other = shared_of_block(sums, (block + distance) % blocks);
            float4 y[at_a_time];
#pragma unroll
            for (int i = 0; i < at_a_time; ++i) y[i] = load_4_of_block(other + place[i]);
#pragma unroll
            for (int i = 0; i < at_a_time; ++i)
                x[i] = make_float4(x[i].x + y[i].x, x[i].y + y[i].y, x[i].z + y[i].z, x[i].w + y[i].w);
        }
#pragma unroll
        for (int i = 0; i < at_a_time; ++i) {
            const int item = begin + i * computing_threads, column = item % Sums::row_chunks * 4;
            const int key = block * own_keys + item / Sums::row_chunks;
            if (item >= count || column >= dim || target.first_key + key >= target.key_tokens) continue;
            write_four<T>(result, first + key * result.strides.token + column,
                          make_float4(x[i].x * factor, x[i].y * factor, x[i].z * factor, x[i].w * factor), target.adds,
                          at_once);
        }
    }
}

/// Writes the dk and dv that the computing threads hold, of which `row`, `dk_column` and `dv_column` are the first of
/// the warp's four lanes. All computing threads call it.
template <class T, class Config, int dk_count, int dv_count>
__device__ __forceinline__ void write_key_gradients(const BackwardKernelParams& all, std::uint32_t base,
                                                    const float (&dk)[dk_count], const float (&dv)[dv_count], int row,
                                                    int dk_column, int dv_column, int t) {
    using Layout = BackwardLayout<Config>;
    constexpr int keys = Config::keys, dk_bytes = keys * Config::head * 4, dv_bytes = keys * Config::value * 4;
    // Until the end bulk copies read parts of dq: with split dims, where Q and dO were.
    constexpr int free_bytes = Config::split_dims ? Layout::q : Layout::dq;
    constexpr bool together = dk_bytes + dv_bytes <= free_bytes;
    static_assert(dk_bytes <= free_bytes && dv_bytes <= free_bytes);
    const GradientTarget target(all, load_share(base + Layout::share), keys);
    const int dk_dim = all.params.q.dim, dv_dim = all.params.v.dim;
    const float scale = all.params.scale;
    const auto await_target = [&] {
        if (all.fused.blocks) await_gradient(all.fused, target.fused_block);
    };
    if (blocks_of_cluster() == 1) {  // through shared memory, a warpgroup would wait for the other
        await_target();
        write_accumulators<T>(dk, target.dk, target, row, dk_column, t, dk_dim, scale);
        write_accumulators<T>(dv, target.dv, target, row, dv_column, t, dv_dim, 1.0f);
        return;
    }
    const std::uint32_t dk_sums = base, dv_sums = base + (together ? dk_bytes : 0);
    sync_named(1, computing_threads);  // nobody reads the tiles any more
    KeySums<Config::head>::give(dk_sums, dk, row, dk_column + 2 * t);
    if constexpr (together) KeySums<Config::value>::give(dv_sums, dv, row, dv_column + 2 * t);
    sync_cluster();
    await_target();
    write_sums<T, keys, Config::head>(dk_sums, target.dk, target, dk_dim, scale);
    if constexpr (!together) {
        sync_cluster();
        KeySums<Config::value>::give(dv_sums, dv, row, dv_column + 2 * t);
        sync_cluster();
    }
    write_sums<T, keys, Config::value>(dv_sums, target.dv, target, dv_dim, 1.0f);
    sync_cluster();  // the others have read this block's sums
}

/// Signals that this thread block's part of dk and dv is in memory. Called by the computing threads.
__device__ inline void tell_end(const BackwardKernelParams& all, const Share& share) {
    if (!all.fused.blocks) return;
    const FusedLaunchBlock& block = all.fused.blocks[share.item.w];
    if (!block.ended) return;
    sync_named(1, computing_threads);
    if (threadIdx.x != backward_threads - computing_threads) return;
    __threadfence_system();
    atomicAdd(block.ended, 1u);
}

}  // namespace ringlab::gpu::hopper
