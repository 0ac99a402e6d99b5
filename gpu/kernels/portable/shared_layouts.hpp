#pragma once

#include "gpu/kernels/portable/tile_config.hpp"

// Where the portable kernels keep what in shared memory, as byte offsets, and how many bytes a thread block needs.

namespace ringlab::gpu::portable {

template <DimClass dims>
struct ForwardShared {
    using Config = ForwardConfig<dims>;
    static constexpr int q = 0;
    static constexpr int k = q + Config::rows * Config::head * 2;
    static constexpr int v = k + Config::keys * Config::head * 2;
    static constexpr int bytes = v + Config::keys * Config::value * 2;
};

template <DimClass dims>
struct BackwardShared {
    using Config = BackwardConfig<dims>;
    static constexpr int ds_cols = Config::rows;  // P and dS are [key][query]
    static constexpr int q_bytes = Config::rows * Config::head * 2, dout_bytes = Config::rows * Config::value * 2;
    static constexpr int k = 0;
    static constexpr int v = k + Config::keys * Config::head * 2;
    static constexpr int q = v + Config::keys * Config::value * 2;
    static constexpr int dout = q + Config::stages * q_bytes;
    static constexpr int ds = dout + Config::stages * dout_bytes;
    static constexpr int p = ds + Config::keys * ds_cols * 2;  // empty unless warps share keys
    // One tile's: those of the next tile come when P is stored. Two would be too much for two thread blocks with head
    // dim 64 on sm_80, which has 81 KiB for each.
    static constexpr int statistics = p + (Config::sharing > 1 ? Config::keys * ds_cols * 2 : 0);
    static constexpr int barriers = statistics + Config::rows * 8;
    static constexpr int bytes = barriers + 2 * 8;
    static constexpr int warps = Config::keys / 32 * Config::sharing, threads = warps * 32;

    // dq: warps split the rows in groups of 32, then the dims.
    static constexpr int dq_row_groups = Config::rows / 32, dq_groups = warps / dq_row_groups;
    static constexpr int dq_cols = Config::head / dq_groups;
    // Dims in patches of 16: those of a group are neighbours (whole lines of 128 bytes), or groups take turns.
    static constexpr int dq_stride = Config::adds_lines ? 1 : dq_groups;
    static constexpr int dq_first_patches = Config::adds_lines ? dq_cols / 16 : 1;
};

template <DimClass dims>
struct QueryGradientShared {
    using Config = QueryGradientConfig<dims>;
    static constexpr int k_bytes = Config::keys * Config::head * 2, v_bytes = Config::keys * Config::value * 2;
    static constexpr int q = 0;
    static constexpr int dout = q + Config::rows * Config::head * 2;
    static constexpr int k = dout + Config::rows * Config::value * 2;  // two stages
    static constexpr int v = k + 2 * k_bytes;                          // two stages
    static constexpr int bytes = v + 2 * v_bytes;
};

}  // namespace ringlab::gpu::portable
