#pragma once

#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/common/cluster.cuh"
#include "gpu/kernels/hopper/common/work_tiles.cuh"
#include "gpu/kernels/hopper/split_kv/split_kv.hpp"

// How the launches of a MergingLaunch's peers exchange rows and results. Each stores pairs in the memory of the other:
// four bytes of data, and the number of the launch. A pair is stored and loaded as one, so whoever finds the number has
// the data: no flag, and no fence, which would wait for all stores that came before. NCCL's protocol LL does the same.
//
// Every pair of a message is stored once in each pass. So it has the number of this pass or of an earlier one, and
// nothing is reset.
//
// The kernels cannot wait for each other in a circle. A launch sends its rows before it waits for anything. Then come
// the thread blocks that attend to rows of other ranks, which wait for those messages alone, then those of the own
// rows, which wait for nobody, and last the blocks that merge, which wait for the own blocks and for the peers' blocks
// of the first kind. (Blocks begin in the order of their numbers.)
//
// No pair is overwritten too early. A peer stores results of launch n when it has the rows of launch n, which the owner
// sends after its launch n - 1 has ended. The owner sends rows of launch n after it has had the peer's results of n -
// 1, which the peer sent after it had read the rows of n - 1.

namespace ringlab::gpu::hopper {

struct TwoPairs {
    Pair first, second;
};

__device__ inline Pair pair_of(std::uint32_t data, std::uint32_t number) {
    return static_cast<Pair>(number) << 32 | data;
}
__device__ inline Pair pair_of(float data, std::uint32_t number) { return pair_of(__float_as_uint(data), number); }
__device__ inline std::uint32_t data_of(Pair pair) { return static_cast<std::uint32_t>(pair); }
__device__ inline float float_of(Pair pair) { return __uint_as_float(data_of(pair)); }
__device__ inline bool has_number(Pair pair, std::uint32_t number) { return pair >> 32 == number; }

__device__ inline Pair load_one(const Pair* from) {
    Pair pair;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(pair) : "l"(from) : "memory");
    return pair;
}
__device__ inline void store_one(Pair* to, Pair pair) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(pair) : "memory");
}

/// Two pairs at a multiple of 16 bytes. Each of them is loaded and stored as one.
__device__ inline TwoPairs load_two(const Pair* from) {
    TwoPairs two;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(two.first), "=l"(two.second)
                 : "l"(from)
                 : "memory");
    return two;
}
__device__ inline void store_two(Pair* to, Pair first, Pair second) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}

/// What the host is told about peer `index` of a kind.
__device__ inline std::uint32_t late_rows(int index) { return 2 * static_cast<std::uint32_t>(index) + 1; }
__device__ inline std::uint32_t late_result(int index) { return 2 * static_cast<std::uint32_t>(index) + 2; }

/// A wait of one thread for pairs, for a limited time. After that it reports to the host and goes on with whatever is
/// there, as await_flag() of fused launches does.
class Wait {
public:
    explicit __device__ Wait(const MergingLaunch& launch) : launch_(launch) {}

    /// Called after each look that was in vain. `late`: what is not there; 0 if it comes from this launch, so that it
    /// is in time, or another wait has reported why not.
    __device__ bool is_over(std::uint32_t late) {
        constexpr int looks_between_clocks = 64;
        if (++looks_ % looks_between_clocks != 0) return false;
        if (load_acquired(launch_.late) != 0) return true;
        const auto now = nanoseconds();
        if (begin_ == 0) begin_ = now;
        if (late == 0 || now - begin_ <= launch_.most_nanoseconds) return false;
        store_released(launch_.reported, late);
        store_released(launch_.late, 1);
        return true;
    }

private:
    const MergingLaunch& launch_;
    int looks_ = 0;
    std::uint64_t begin_ = 0;
};

/// The index of a row in a message of `tokens` tokens.
__device__ inline std::int64_t row_of_message(const ForwardParams& params, int tokens, int batch, int token, int head) {
    return (static_cast<std::int64_t>(batch) * tokens + token) * params.geometry.query_heads + head;
}

/// Sends the rank's own rows: each thread four chunks of 16 bytes at a time, because a copy takes about 2.7 us from
/// load to store. The first blocks of the grid send them, which run at the same time: a later block might begin only
/// after blocks that wait for a peer which waits for these rows.
__device__ inline void send_rows(const MergingLaunch& launch) {
    constexpr int unroll = 4, most_blocks = 56;
    const int blocks = min(static_cast<int>(gridDim.x), most_blocks);
    if (launch.message_count == 0 || static_cast<int>(blockIdx.x) >= blocks) return;
    const auto& geometry = launch.forward.geometry;
    const auto& q = launch.rows.q;
    const int chunks = q.dim / 8, heads = geometry.query_heads, tokens = launch.rows.tokens;
    const int all = geometry.batch * tokens * heads * chunks;
    const int step = blocks * static_cast<int>(blockDim.x);
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < all; i += unroll * step) {
        uint4 some[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (const int at = i + u * step; at < all) {
                const int row = at / chunks, head = row % heads, token = row / heads % tokens;
                some[u] = *reinterpret_cast<const uint4*>(
                    static_cast<const std::uint16_t*>(q.data) +
                    device::row_index(q.strides, row / heads / tokens, token, head) + at % chunks * 8);
            }
        for (int m = 0; m < launch.message_count; ++m)
#pragma unroll
            for (int u = 0; u < unroll; ++u)
                if (const int at = i + u * step; at < all) {
                    Pair* const to = launch.messages[m] + static_cast<std::int64_t>(at) * 4;
                    store_two(to, pair_of(some[u].x, launch.number), pair_of(some[u].y, launch.number));
                    store_two(to + 2, pair_of(some[u].z, launch.number), pair_of(some[u].w, launch.number));
                }
    }
}

/// Merges the own result and those of peers into the output, by thread block `index` of launch.merging_clusters. Each
/// warp takes rows in turn. Results are normalised: their l is 1, and their m is lse. They are added in a fixed order.
template <int columns>
__device__ inline void merge_rows(const MergingLaunch& launch, int index) {
    using namespace device;
    constexpr float log2_e = 1.4426950408889634f;
    constexpr int most = MergingLaunch::most_peers + 1, parts = columns / 64;
    const auto& params = launch.forward;
    const int heads = params.geometry.query_heads, tokens = launch.rows.tokens, own = launch.result_count;
    const int warps = static_cast<int>(blockDim.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int step = launch.merging_clusters * blocks_of_cluster() * warps;
    for (int row = index * warps + static_cast<int>(threadIdx.x) / 32; row < params.geometry.batch * tokens * heads;
         row += step) {
        // All loads are under way together, those of lse too.
        Pair lse[most];
        TwoPairs o[most][parts];
        for (Wait wait(launch);;) {
            int missing = -1;
#pragma unroll
            for (int p = most; p-- > 0;) {
                if (p > own) continue;
                const auto& result = p == own ? launch.own : launch.results[p];
                lse[p] = load_one(result.lse + row);
                bool is_there = has_number(lse[p], launch.number);
#pragma unroll
                for (int s = 0; s < parts; ++s)
                    if (const int column = 64 * s + 2 * lane; column < params.v.dim) {
                        o[p][s] = load_two(result.o + static_cast<std::int64_t>(row) * params.v.dim + column);
                        is_there = is_there && has_number(o[p][s].first, launch.number) &&
                                   has_number(o[p][s].second, launch.number);
                    }
                if (!is_there) missing = p;
            }
            if (missing < 0 || wait.is_over(missing == own ? 0 : late_result(missing))) break;
        }
        __syncwarp();
        float weight[most], largest = minus_infinity(), sum = 0;
#pragma unroll
        for (int p = 0; p < most; ++p) {
            weight[p] = p <= own ? float_of(lse[p]) * log2_e : minus_infinity();
            largest = fmaxf(largest, weight[p]);
        }
        const float offset = largest == minus_infinity() ? 0.0f : largest;
#pragma unroll
        for (int p = 0; p < most; ++p) sum += weight[p] = exp2_fast(weight[p] - offset);
        const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
        const int head = row % heads, token = row / heads % tokens, batch = row / heads / tokens;
#pragma unroll
        for (int s = 0; s < parts; ++s) {
            const int column = 64 * s + 2 * lane;
            if (column >= params.v.dim) continue;
            float2 all = make_float2(0, 0);
#pragma unroll
            for (int p = 0; p < most; ++p) {
                if (p > own) break;
                all = make_float2(all.x + weight[p] * float_of(o[p][s].first),
                                  all.y + weight[p] * float_of(o[p][s].second));
            }
            for (const Elements& result : {params.o, params.o_rounded})
                if (result.data)
                    store_pair(result, row_index(result.strides, batch, token, head) + column, all.x * inverse,
                               all.y * inverse, params.v.dim - column);
        }
        if (lane == 0 && params.lse.data) value_of(params.lse, batch, token, head) = natural_lse(largest, sum);
    }
}

}  // namespace ringlab::gpu::hopper
