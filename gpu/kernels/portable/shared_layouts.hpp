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
    static constexpr int ds_cols = 64;  // Config::rows of them used: a tile's rows are multiples of 64 elements
    static constexpr int q_bytes = Config::rows * Config::head * 2, dout_bytes = Config::rows * Config::value * 2;
    static constexpr int statistics_bytes = Config::rows * 8;
    static constexpr int k = 0;
    static constexpr int v = k + Config::keys * Config::head * 2;
    static constexpr int q = v + Config::keys * Config::value * 2;
    static constexpr int dout = q + Config::stages * q_bytes;
    static constexpr int ds = dout + Config::stages * dout_bytes;
    static constexpr int statistics = ds + Config::keys * ds_cols * 2;
    static constexpr int bytes = statistics + Config::stages * statistics_bytes;
    static constexpr int warps = Config::keys / 16 * Config::dim_split, threads = warps * 32;

    // dq: warps split the rows in groups of 32, then the dims.
    static constexpr int dq_row_groups = Config::rows / 32, dq_cols = Config::head / (warps / dq_row_groups);
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
