#pragma once

#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/hopper/common/shared_access.cuh"
#include "gpu/kernels/hopper/forward/forward.hpp"
#include "gpu/kernels/hopper/forward/forward_shared.cuh"

namespace ringlab::gpu::hopper {

/// One thread's part of the rows of a consumer warpgroup: their softmax, and how they are merged and stored at the end
/// of a work tile. A thread holds rows row_in_tile and row_in_tile + 8 of an accumulator, and two of each eight
/// columns.
template <class Config>
struct ForwardRows {
    static constexpr int keys = Config::keys, value = Config::value;

    using Shared = ForwardShared<Config>;
    const ForwardLaunch& launch;
    int lane, row_in_tile;
    float o[value / 2], s[keys / 2], m[2], l[2], rescale[2];

    __device__ __forceinline__ int row(const Unit& unit, int r) const {
        return unit.tile * Config::rows + row_in_tile + 8 * r;
    }

    __device__ __forceinline__ void begin_rows() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[r] = device::minus_infinity();
            l[r] = 0;
        }
    }
    __device__ __forceinline__ void clear_output() {
#pragma unroll
        for (int i = 0; i < value / 2; ++i) o[i] = 0;
    }

    __device__ __forceinline__ void rescale_output() {
#pragma unroll
        for (int i = 0; i < value / 2; ++i) o[i] *= rescale[i / 2 % 2];
    }

    /// Replaces scores by p = exp2(score * factor - m). Updates m and l, and sets `rescale`, by which o must be
    /// multiplied.
    __device__ __forceinline__ void take_softmax(float factor) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float a = fmaxf(s[2 * r], s[2 * r + 1]), b = fmaxf(s[4 + 2 * r], s[4 + 2 * r + 1]);
#pragma unroll
            for (int n = 2; n < keys / 8; n += 2) {
                a = fmaxf(a, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
                b = fmaxf(b, fmaxf(s[4 * n + 4 + 2 * r], s[4 * n + 4 + 2 * r + 1]));
            }
            float largest = fmaxf(a, b);
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            const float new_m = fmaxf(m[r], largest * factor);
            // A row that has seen nothing yet keeps m = -inf; any finite offset then gives p = 0.
            const float offset = new_m == device::minus_infinity() ? 0.0f : new_m;
            rescale[r] = device::exp2_fast(m[r] - offset);
            m[r] = new_m;
            float x = 0, y = 0;
#pragma unroll
            for (int n = 0; n < keys / 8; ++n) {
                float& left = s[4 * n + 2 * r];
                float& right = s[4 * n + 2 * r + 1];
                left = device::exp2_fast(left * factor - offset);
                right = device::exp2_fast(right * factor - offset);
                x += left;
                y += right;
            }
            l[r] = l[r] * rescale[r] + (x + y);
        }
    }

    // ---- the end of a work tile

    // Number of registers of O that are merged with the carry at a time.
    static constexpr int carry_part = value <= keys ? value / 2 : 32;

    __device__ __forceinline__ bool exists(const Unit& unit, int r) const {
        return row(unit, r) < launch.params.geometry.query_tokens;
    }
    __device__ __forceinline__ std::int64_t index_of(const Elements& tensor, const Unit& unit, int r) const {
        return device::row_index(tensor.strides, unit.batch, row(unit, r), unit.head);
    }
    __device__ __forceinline__ float& value_of(const RowValues& rows, const Unit& unit, int r) const {
        return device::value_of(rows, unit.batch, row(unit, r), unit.head);
    }

    // A lane holds two columns of each eight, 8 bytes of fp32, and one store instruction covers eight rows. For 16-byte
    // stores lanes 2 i and 2 i + 1 exchange columns: afterwards one has four columns of these eight, and the other four
    // of the next eight. With 16-bit elements four lanes exchange columns. Value dims are multiples of 8, so either all
    // or none of eight columns exist.

    /// The lane. It is read again at the end of a work tile, so that nothing computed from it is kept in registers
    /// during the main loop.
    __device__ __forceinline__ int lane_anew() const {
        int x;
        asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
        return x;
    }

    /// Exchanges two columns each of two eights for four columns of one eight, and back.
    __device__ __forceinline__ void exchange(float2& a, float2& b, bool is_odd) const {
        const float2 sent = is_odd ? a : b;
        const float2 got = make_float2(__shfl_xor_sync(~0u, sent.x, 1), __shfl_xor_sync(~0u, sent.y, 1));
        (is_odd ? a : b) = got;
    }

    /// Transposes over four lanes: element j of lane i becomes element i of lane j.
    __device__ __forceinline__ void transpose(std::uint32_t (&x)[4], int t) const {
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

    __device__ __forceinline__ void load_carry_part(const Unit& unit, int part) {
        const auto& carry = launch.params.carry_o;
        const int t = lane_anew() % 4, odd = t % 2, columns = launch.params.v.dim - 8 * odd;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float* from = static_cast<const float*>(carry.data) + index_of(carry, unit, r) + 6 * odd + 2 * t;
#pragma unroll
            for (int n = 0; n < carry_part / 4; n += 2) {
                const int column = part * (carry_part / 4) + n;
                const float4 four = exists(unit, r) && 8 * column < columns
                                        ? *reinterpret_cast<const float4*>(from + 8 * column)
                                        : make_float4(0, 0, 0, 0);
                s[4 * n + 2 * r] = four.x;
                s[4 * n + 2 * r + 1] = four.y;
                s[4 * n + 4 + 2 * r] = four.z;
                s[4 * n + 5 + 2 * r] = four.w;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int n = 0; n < carry_part / 4; n += 2) {
                float2 a = make_float2(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]);
                float2 b = make_float2(s[4 * n + 4 + 2 * r], s[4 * n + 5 + 2 * r]);
                exchange(a, b, odd);
                s[4 * n + 2 * r] = a.x;
                s[4 * n + 2 * r + 1] = a.y;
                s[4 * n + 4 + 2 * r] = b.x;
                s[4 * n + 5 + 2 * r] = b.y;
            }
    }

    /// Merges and stores the results of a work tile from o, m and l. Overwrites the registers of the scores.
    /// `q_place`: of the work tile's Q, if its carry has boxes.
    __device__ __forceinline__ void finish(const Unit& unit, std::uint32_t shared, int q_place) {
        sum_rows();
        if (!launch.params.first) {
            if constexpr (Shared::boxes > 0)
                merge_boxes(shared, q_place);
            else
                merge_carry(unit);
        }
        launch.params.last ? store_result(unit) : store_carry(unit);
    }

    __device__ __forceinline__ void sum_rows() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            l[r] += __shfl_xor_sync(~0u, l[r], 1);
            l[r] += __shfl_xor_sync(~0u, l[r], 2);
        }
    }

    /// Merges m and l with those of the carry. Sets `old`, the factor of the carry's o, and `rescale`, that of the work
    /// tile's own o.
    __device__ __forceinline__ void merge_rows(const float (&carry_m)[2], const float (&carry_l)[2], float (&old)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float new_m = fmaxf(m[r], carry_m[r]);
            const float offset = new_m == device::minus_infinity() ? 0.0f : new_m;
            old[r] = device::exp2_fast(carry_m[r] - offset);
            rescale[r] = device::exp2_fast(m[r] - offset);
            m[r] = new_m;
            l[r] = l[r] * rescale[r] + carry_l[r] * old[r];
        }
    }
    /// m and l of the carry; those of a row that has seen nothing if it is not there.
    __device__ __forceinline__ void load_carry_rows(const Unit& unit, bool is_there, float (&carry_m)[2],
                                                    float (&carry_l)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool loaded = is_there && exists(unit, r);
            carry_m[r] = loaded ? value_of(launch.params.carry_m, unit, r) : device::minus_infinity();
            carry_l[r] = loaded ? value_of(launch.params.carry_l, unit, r) : 0.0f;
        }
    }

    // ---- the carry in boxes: see ForwardShared

    static constexpr int columns_in_boxes = Shared::boxes * Shared::box_columns;
    static constexpr int rest = Shared::boxes > 0 ? value - columns_in_boxes : 0;  // columns that are in no box
    float carry_m[2], carry_l[2];
    float4 rest_of_carry[rest / 8 + 1];

    /// Loads what is in no box. It takes a while, so it is done before the last products of the work tile.
    __device__ __forceinline__ void load_rest_of_carry(const Unit& unit, bool has_boxes) {
        if constexpr (Shared::boxes > 0) {
            load_carry_rows(unit, has_boxes, carry_m, carry_l);
            const auto& carry = launch.params.carry_o;
            const int t = lane_anew() % 4, odd = t % 2, columns = launch.params.v.dim - 8 * odd;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float* from = static_cast<const float*>(carry.data) + index_of(carry, unit, r) + 6 * odd + 2 * t;
#pragma unroll
                for (int n = 0; n < rest / 8; n += 2) {
                    const int column = columns_in_boxes + 8 * n;
                    rest_of_carry[n + r] = has_boxes && exists(unit, r) && column < columns
                                               ? *reinterpret_cast<const float4*>(from + column)
                                               : make_float4(0, 0, 0, 0);
                }
            }
        }
    }

    __device__ __forceinline__ void merge_boxes(std::uint32_t shared, int q_place) {
        float old[2];
        merge_rows(carry_m, carry_l, old);
        const auto merge = [&](int n, int r, float2 x) {
            float &left = o[4 * n + 2 * r], &right = o[4 * n + 2 * r + 1];
            left = left * rescale[r] + x.x * old[r];
            right = right * rescale[r] + x.y * old[r];
        };
        const int at = lane_anew(), t = at % 4;
        // Of the thread's first two columns in a box, whose rows are swizzled: see Swizzle::bytes_128.
        const auto first = static_cast<std::uint32_t>(row_in_tile * 128 + ((at / 4) ^ (t / 2)) * 16 + t % 2 * 8);
#pragma unroll
        for (int n = 0; n < columns_in_boxes / 8; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                merge(n, r,
                      load_shared_float2(shared + Shared::box(n / 4, q_place) +
                                         (first ^ static_cast<std::uint32_t>(n % 4 * 32)) + 8 * 128 * r));
#pragma unroll
        for (int n = 0; n < rest / 8; n += 2)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float4 four = rest_of_carry[n + r];
                float2 a = make_float2(four.x, four.y), b = make_float2(four.z, four.w);
                exchange(a, b, t % 2);
                merge(columns_in_boxes / 8 + n, r, a);
                merge(columns_in_boxes / 8 + n + 1, r, b);
            }
    }

    // ---- the carry without boxes

    __device__ __forceinline__ void merge_carry(const Unit& unit) {
        float m_before[2], l_before[2], old[2];
        load_carry_rows(unit, true, m_before, l_before);
        merge_rows(m_before, l_before, old);
#pragma unroll
        for (int part = 0; part < value / 2 / carry_part; ++part) {
            load_carry_part(unit, part);
#pragma unroll
            for (int i = 0; i < carry_part; ++i) {
                float& x = o[part * carry_part + i];
                x = x * rescale[i / 2 % 2] + s[i] * old[i / 2 % 2];
            }
        }
    }

    /// O times a factor per row, to a tensor in global memory.
    __device__ __forceinline__ void store(const Unit& unit, const Elements& to, const float (&factor)[2]) const {
        const int t = lane_anew() % 4, odd = t % 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const bool stored = exists(unit, r);
            const auto index = index_of(to, unit, r);
            const auto pair = [&](int n) {
                return make_float2(o[4 * n + 2 * r] * factor[r], o[4 * n + 2 * r + 1] * factor[r]);
            };
            if (to.dtype == DType::fp32) {
                float* target = static_cast<float*>(to.data) + index + 6 * odd + 2 * t;
                const int columns = launch.params.v.dim - 8 * odd;
#pragma unroll
                for (int n = 0; n < value / 8; n += 2) {
                    float2 a = pair(n), b = pair(n + 1);
                    exchange(a, b, odd);
                    if (stored && 8 * n < columns)
                        *reinterpret_cast<float4*>(target + 8 * n) = make_float4(a.x, a.y, b.x, b.y);
                }
            } else {
                auto* target = static_cast<std::uint16_t*>(to.data) + index + 8 * t;
                const int columns = launch.params.v.dim - 8 * t;
                const bool is_bf16 = to.dtype == DType::bf16;
#pragma unroll
                for (int n = 0; n < value / 8; n += 4) {
                    std::uint32_t x[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        x[i] = is_bf16 ? device::pack<__nv_bfloat16>(pair(n + i).x, pair(n + i).y)
                                       : device::pack<__half>(pair(n + i).x, pair(n + i).y);
                    transpose(x, t);
                    if (stored && 8 * n < columns)
                        *reinterpret_cast<uint4*>(target + 8 * n) = make_uint4(x[0], x[1], x[2], x[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void store_carry(const Unit& unit) {
        const auto& params = launch.params;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (!exists(unit, r) || lane % 4 != 0) continue;
            value_of(params.carry_m, unit, r) = m[r];
            value_of(params.carry_l, unit, r) = l[r];
        }
        store(unit, params.carry_o, {1.0f, 1.0f});
    }

    __device__ __forceinline__ void store_result(const Unit& unit) {
        const auto& params = launch.params;
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            inverse[r] = l[r] > 0 ? 1.0f / l[r] : 0.0f;
            if (params.lse.data && exists(unit, r) && lane % 4 == 0)
                value_of(params.lse, unit, r) = device::natural_lse(m[r], l[r]);
        }
        if (params.o.data) store(unit, params.o, inverse);
        if (params.o_rounded.data) store(unit, params.o_rounded, inverse);
    }
};

}  // namespace ringlab::gpu::hopper
