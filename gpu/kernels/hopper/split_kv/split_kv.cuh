#pragma once

#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/common/cluster.cuh"
#include "gpu/kernels/hopper/split_kv/exchange.cuh"
#include "gpu/kernels/hopper/split_kv/split_kv.hpp"

#include <type_traits>

// Few query rows over many keys (decoding): there is little to compute, and the time is that of reading K and V once at
// the memory's rate. So the thread blocks of a cluster split the keys of a kv head, and the warps of a block split its
// share: each warp processes 16 keys at a time, independently of the others. The rows are those of all query heads that
// read the kv head, 16 of them in a row group. At the end the warps of a block merge their (o, m, l) in shared memory,
// and the blocks of a cluster in distributed shared memory, where a carry counts as one more partial result.
//
// A MergingLaunch does a rank's whole pass, see MergingArgs: its first row groups are of other ranks' rows, and its
// last thread blocks merge the peers' results into the own one.

namespace ringlab::gpu::hopper {

/// 16 rows of a tile of `cols` columns, zeros where there are none, by one warp.
template <int cols, class T>
__device__ inline void load_sixteen_rows(std::uint32_t tile, const device::HeadRows<T>& source, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % 8;
#pragma unroll
    for (int row = lane / 8; row < 16; row += 4) {
        const std::uint32_t target = tile + row * (cols * 2) + ((chunk ^ (row % 8)) << 4);
        const T* data = source.data + (first + row) * source.token_stride + chunk * 8;
#pragma unroll
        for (int s = 0; s < cols / 64; ++s)
            device::copy_async_16(target + s * 128, data + s * 64,
                                  first + row < source.rows && s * 64 + chunk * 8 < source.dim);
    }
}

/// A row of a row group: query token and head.
struct GroupRow {
    int token, head;
    bool exists;
};

template <class T, DimClass dims, class Launch>
__global__ void __launch_bounds__(SplitKvConfig<dims>::warps * 32, 1)
    split_kv_kernel(const __grid_constant__ Launch launch) {
    using namespace device;
    constexpr bool merges = std::is_same_v<Launch, MergingLaunch>;
    using Config = SplitKvConfig<dims>;
    constexpr int rows = Config::rows, warps = Config::warps, threads = warps * 32, o_tiles = Config::value / 8;
    constexpr int k_bytes = Config::warp_keys * Config::head * 2, v_bytes = Config::warp_keys * Config::value * 2;
    constexpr int stage_bytes = k_bytes + v_bytes;
    constexpr int most_blocks = 8;  // of a cluster

    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(128) unsigned char q_tile[rows * Config::head * 2];
    __shared__ float warp_m[warps][rows], warp_l[warps][rows];
    __shared__ float block_m[rows], block_l[rows];  // what other blocks of the cluster read
    __shared__ float carry_m_to_store[rows], carry_l_to_store[rows];

    const ForwardParams& params = launch.forward;
    const Geometry& geometry = params.geometry;
    const int blocks = blocks_of_cluster(), block = block_of_cluster();
    int group = static_cast<int>(blockIdx.x) / blocks;
    int other = 0;  // which rank's rows
    bool own = true;
    if constexpr (merges) {
        send_rows(launch);
        while (other < launch.other_count && group >= launch.others[other].rows.row_groups)
            group -= launch.others[other++].rows.row_groups;
        own = other == launch.other_count;
        if (own && group >= launch.rows.row_groups)
            return merge_rows<Config::value>(launch, (group - launch.rows.row_groups) * blocks + block);
    }
    const SplitKvRows& source = [&]() -> const SplitKvRows& {
        if constexpr (merges)
            if (!own) return launch.others[other].rows;
        return launch.rows;
    }();
    const int kv_heads = geometry.query_heads / geometry.group;
    const int groups = (source.tile_tokens * geometry.group + rows - 1) / rows;  // of a work tile and kv head
    const int kv_head = group / groups % kv_heads, batch = group / groups / kv_heads % geometry.batch;
    const int4 item = source.work.items[group / groups / kv_heads / geometry.batch];
    const int first_token = item.x * source.tile_tokens, first_row = group % groups * rows;
    // Rows of the tile that exist, from this group's first one on.
    const int existing = min(source.tile_tokens, source.tokens - first_token) * geometry.group - first_row;
    const auto row_of_group = [&](int row) {
        const int index = first_row + row;
        return GroupRow{first_token + index / geometry.group, kv_head * geometry.group + index % geometry.group,
                        row < existing};
    };
    const auto k = head_rows<T>(params.k, batch, kv_head, geometry.key_tokens);
    const auto v = head_rows<T>(params.v, batch, kv_head, geometry.key_tokens);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

    // 1. This warp's keys of this block's tiles, `stages` loads of them in flight.
    const int* const entries = source.work.entries;
    const std::uint32_t stages = shared_address(shared) + warp * Config::stages * stage_bytes;
    const auto first_key = [&](int entry) { return (entry >> 1) * Config::keys + warp * Config::warp_keys; };
    const auto load = [&](int entry, int stage) {
        load_sixteen_rows<Config::head>(stages + stage * stage_bytes, k, first_key(entry));
        load_sixteen_rows<Config::value>(stages + stage * stage_bytes + k_bytes, v, first_key(entry));
    };
    int first_entries[Config::stages];  // loaded together
#pragma unroll
    for (int s = 0; s < Config::stages; ++s) {
        const int e = item.y + block + s * blocks;
        first_entries[s] = e < item.z ? __ldg(entries + e) : 0;
    }
#pragma unroll
    for (int s = 0; s < Config::stages; ++s) {
        if (item.y + block + s * blocks < item.z) load(first_entries[s], s);
        commit_copies();
    }

    // 2. Q of the row group becomes a tile, and that operands of products. Each element is loaded by one thread,
    // because all row groups look for the rows of a peer at the same time.
    constexpr int q_loads = rows * Config::head / 4 / threads;  // of four elements each
    uint2 loaded[q_loads];
    const auto load_q = [&](auto four_elements) {
#pragma unroll
        for (int i = 0; i < q_loads; ++i) {
            const int at = static_cast<int>(threadIdx.x) + i * threads, column = at % (Config::head / 4) * 4;
            const auto row = row_of_group(at / (Config::head / 4));
            loaded[i] = row.exists && column < source.q.dim ? four_elements(row, column) : uint2{};
        }
    };
    const auto load_own_q = [&] {
        load_q([&](const GroupRow& row, int column) {
            return *reinterpret_cast<const uint2*>(static_cast<const T*>(source.q.data) +
                                                   row_index(source.q.strides, batch, row.token, row.head) + column);
        });
    };
    if constexpr (merges) {
        if (own) {
            load_own_q();
        } else {
            for (Wait wait(launch);;) {
                bool is_there = true;
                load_q([&](const GroupRow& row, int column) {
                    const auto index = row_of_message(params, source.tokens, batch, row.token, row.head);
                    const auto two = load_two(launch.others[other].q + (index * source.q.dim + column) / 2);
                    is_there =
                        is_there && has_number(two.first, launch.number) && has_number(two.second, launch.number);
                    return uint2{data_of(two.first), data_of(two.second)};
                });
                if (is_there || wait.is_over(late_rows(other))) break;
            }
        }
    } else {
        load_own_q();
    }
#pragma unroll
    for (int i = 0; i < q_loads; ++i) {
        const int at = static_cast<int>(threadIdx.x) + i * threads, column = at % (Config::head / 4) * 4;
        const int row = at / (Config::head / 4);
        *reinterpret_cast<uint2*>(q_tile + row * (Config::head * 2) + column / 64 * 128 +
                                  ((column % 64 / 8 ^ row % 8) << 4) + column % 8 * 2) = loaded[i];
    }
    __syncthreads();
    std::uint32_t q[Config::head / 16][4];
    const std::uint32_t q_lane = lane_address<Config::head, LaneOrder::straight>(shared_address(q_tile), 0);
#pragma unroll
    for (int patch = 0; patch < Config::head / 16; ++patch) load_matrices(q[patch], patch_address(q_lane, patch));
    int4 bounds[2];  // of rows lane / 4 and lane / 4 + 8, which are this thread's
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const auto row = row_of_group(lane / 4 + 8 * r);
        bounds[r] = row.exists ? __ldg(source.bounds + row.token) : int4{};
    }

    // 3. The warp's result over its keys.
    float o[1][o_tiles][4], m[2] = {minus_infinity(), minus_infinity()}, l[2] = {};
    set_zero(o);
    const float factor = params.rule.factor;
    int stage = 0;
    int entry = first_entries[0];
#pragma unroll 1
    for (int e = item.y + block; e < item.z; e += blocks) {
        // Loaded now, used when this tile is done.
        const int next = e + blocks < item.z ? __ldg(entries + e + blocks) : 0;
        const int e_load = e + Config::stages * blocks;
        const int entry_to_load = e_load < item.z ? __ldg(entries + e_load) : 0;
        wait_copies<Config::stages - 1>();
        __syncwarp();
        const std::uint32_t k_tile = stages + stage * stage_bytes;
        const std::uint32_t k_lane = lane_address<Config::head, LaneOrder::crossed>(k_tile, 0);
        const std::uint32_t v_lane = lane_address<Config::value, LaneOrder::straight>(k_tile + k_bytes, 0);

        float s[2][4] = {};
#pragma unroll
        for (int patch = 0; patch < Config::head / 16; ++patch) {
            std::uint32_t keys[4];
            load_matrices(keys, patch_address(k_lane, patch));
            mma<T>(s[0], q[patch], keys[0], keys[1]);
            mma<T>(s[1], q[patch], keys[2], keys[3]);
        }
        if (params.rule.rewrite)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) s[n][c] = score_of(params.rule, s[n][c]);
        if (entry & 1)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int2 key = __ldg(
                    reinterpret_cast<const int2*>(geometry.key_positions + first_key(entry) + 8 * n + 2 * (lane % 4)));
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    if (!sees(bounds[r], key.x)) s[n][2 * r] = minus_infinity();
                    if (!sees(bounds[r], key.y)) s[n][2 * r + 1] = minus_infinity();
                }
            }

        float rescale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            const float new_m = fmaxf(m[r], largest * factor);
            // A row that has seen nothing yet keeps m = -inf; any finite offset then gives p = 0.
            const float offset = new_m == minus_infinity() ? 0.0f : new_m;
            rescale[r] = exp2_fast(m[r] - offset);
            m[r] = new_m;
            float sum = 0;
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; ++c) {
                    s[n][c] = exp2_fast(s[n][c] * factor - offset);
                    sum += s[n][c];
                }
            l[r] = l[r] * rescale[r] + sum;
        }
        // Most often no row has a new maximum.
        if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
            for (int n = 0; n < o_tiles; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) o[0][n][c] *= rescale[c / 2];
        std::uint32_t p[1][4];
        pack_operand<T>(p[0], s[0], s[1]);
        multiply_patch<T>(o, p, v_lane);

        __syncwarp();  // no lane reads this stage any more
        if (e_load < item.z) load(entry_to_load, stage);
        commit_copies();
        stage = stage + 1 == Config::stages ? 0 : stage + 1;
        entry = next;
    }
    wait_copies<0>();
    __syncthreads();  // the stages are free for other uses

    // 4. The warps' results become the block's.
    // (warps, rows, value), columns permuted by the row, so that the rows of a warp's store lie in different banks.
    float* const parts = reinterpret_cast<float*>(shared);
    const auto permuted = [](int column, int row) { return column ^ row % 4 * 8; };
    float* const sums = parts + warps * rows * Config::value;
    static_assert((warps + 1) * rows * Config::value * 4 <= warps * Config::stages * stage_bytes);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = lane / 4 + 8 * r;
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
        if (lane % 4 == 0) {
            warp_m[warp][row] = m[r];
            warp_l[warp][row] = l[r];
        }
        if (row < existing)
#pragma unroll
            for (int n = 0; n < o_tiles; ++n)
                *reinterpret_cast<float2*>(parts + (warp * rows + row) * Config::value +
                                           permuted(8 * n + 2 * (lane % 4), row)) =
                    make_float2(o[0][n][2 * r], o[0][n][2 * r + 1]);
    }
    __syncthreads();
    const auto offset_of = [](float largest) { return largest == minus_infinity() ? 0.0f : largest; };
    if (threadIdx.x < rows) {
        const int row = static_cast<int>(threadIdx.x);
        float largest = minus_infinity(), sum = 0;
        for (int w = 0; w < warps; ++w) largest = fmaxf(largest, warp_m[w][row]);
        for (int w = 0; w < warps; ++w) {
            const float share = exp2_fast(warp_m[w][row] - offset_of(largest));
            sum += share * warp_l[w][row];
            warp_m[w][row] = share;
        }
        block_m[row] = largest;
        block_l[row] = sum;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < min(rows, existing) * Config::value; i += threads) {
        const int row = i / Config::value;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < warps; ++w) sum += warp_m[w][row] * parts[w * rows * Config::value + permuted(i, row)];
        sums[i] = sum;
    }

    // 5. The blocks' results become the rows'. Each block merges its share of the columns.
    sync_cluster();
    ResultPairs sent;
    std::uint32_t number = 0;
    if constexpr (merges) {
        sent = own ? launch.own : launch.others[other].result;
        number = launch.number;
    }
    const int columns = Config::value / blocks;
    for (int i = static_cast<int>(threadIdx.x); i < rows * columns / 4; i += threads) {
        const int row = i / (columns / 4), column = block * columns + i % (columns / 4) * 4;
        const auto at = row_of_group(row);
        if (!at.exists || column >= params.v.dim) continue;
        const bool carried = !params.first;
        const float carry_m = carried ? value_of(params.carry_m, batch, at.token, at.head) : minus_infinity();
        const float carry_l = carried ? value_of(params.carry_l, batch, at.token, at.head) : 0.0f;
        float largest = carry_m;
        // Unrolled, so that all loads from other blocks' memory are under way together.
        float m_of[most_blocks], l_of[most_blocks];
        float4 o_of[most_blocks];
#pragma unroll
        for (int b = 0; b < most_blocks; ++b) {
            const auto of_block = [&](const float* value) { return shared_of_block(shared_address(value), b); };
            m_of[b] = b < blocks ? load_of_block(of_block(&block_m[row])) : minus_infinity();
            l_of[b] = b < blocks ? load_of_block(of_block(&block_l[row])) : 0.0f;
            o_of[b] = b < blocks ? load_4_of_block(of_block(sums + row * Config::value + column)) : float4{};
            largest = fmaxf(largest, m_of[b]);
        }
        const float offset = offset_of(largest);
        const float carry_weight = exp2_fast(carry_m - offset);
        float total = carry_weight * carry_l;
        float4 sum = make_float4(0, 0, 0, 0);
        const auto add = [&](float share, float4 some) {
            sum.x += share * some.x;
            sum.y += share * some.y;
            sum.z += share * some.z;
            sum.w += share * some.w;
        };
#pragma unroll
        for (int b = 0; b < most_blocks; ++b) {
            const float weight = exp2_fast(m_of[b] - offset);
            total += weight * l_of[b];
            add(weight, o_of[b]);
        }
        if (block == 0 && column == 0) {
            if (!params.last) {
                carry_m_to_store[row] = largest;
                carry_l_to_store[row] = total;
            } else if (sent.lse) {
                store_one(sent.lse + row_of_message(params, source.tokens, batch, at.token, at.head),
                          pair_of(natural_lse(largest, total), number));
            } else if (params.lse.data) {
                value_of(params.lse, batch, at.token, at.head) = natural_lse(largest, total);
            }
        }
        const float inverse = total > 0 ? 1.0f / total : 0.0f;
        if (sent.o) {
            Pair* const to =
                sent.o + row_of_message(params, source.tokens, batch, at.token, at.head) * params.v.dim + column;
            store_two(to, pair_of(sum.x * inverse, number), pair_of(sum.y * inverse, number));
            store_two(to + 2, pair_of(sum.z * inverse, number), pair_of(sum.w * inverse, number));
            continue;
        }
        const auto store = [&](const Elements& tensor, float scale) {
            const auto index = row_index(tensor.strides, batch, at.token, at.head) + column;
            store_pair(tensor, index, sum.x * scale, sum.y * scale, 2);
            store_pair(tensor, index + 2, sum.z * scale, sum.w * scale, 2);
        };
        if (carried) {
            const auto index = row_index(params.carry_o.strides, batch, at.token, at.head) + column;
            const auto left = load_pair(params.carry_o, index, 2), right = load_pair(params.carry_o, index + 2, 2);
            add(carry_weight, make_float4(left.x, left.y, right.x, right.y));
        }
        if (!params.last) {
            store(params.carry_o, 1.0f);
            continue;
        }
        for (const Elements& result : {params.o, params.o_rounded})
            if (result.data) store(result, inverse);
    }
    sync_cluster();  // nobody reads another block's shared memory, or the carry's m and l, any more
    if (params.last || block != 0 || threadIdx.x >= rows) return;
    const int row = static_cast<int>(threadIdx.x);
    const auto at = row_of_group(row);
    if (!at.exists) return;
    value_of(params.carry_m, batch, at.token, at.head) = carry_m_to_store[row];
    value_of(params.carry_l, batch, at.token, at.head) = carry_l_to_store[row];
}

template <DimClass dims, class Launch>
void launch_split_kv(const Launch& launch, int blocks, DType dtype, cudaStream_t stream) {
    using Config = SplitKvConfig<dims>;
    constexpr int shared_bytes =
        Config::warps * Config::stages * Config::warp_keys * (Config::head + Config::value) * 2;
    int row_groups = launch.rows.row_groups;
    if constexpr (std::is_same_v<Launch, MergingLaunch>)
        for (int i = 0; i < launch.other_count; ++i) row_groups += launch.others[i].rows.row_groups;
    if constexpr (std::is_same_v<Launch, MergingLaunch>) row_groups += launch.merging_clusters;
    if (row_groups == 0) return;
    launch_in_clusters(
        dtype == DType::bf16 ? split_kv_kernel<__nv_bfloat16, dims, Launch> : split_kv_kernel<__half, dims, Launch>,
        "split-KV forward kernel", row_groups, blocks, Config::warps * 32, shared_bytes, launch, stream);
}

}  // namespace ringlab::gpu::hopper
