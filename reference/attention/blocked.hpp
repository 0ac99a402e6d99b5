#pragma once

#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <cstdint>
#include <span>

namespace ringlab::reference {

/// How the blocked reference divides its work. Tile sizes change results only by rounding; the number of threads does
/// not change any bit.
struct BlockedOptions {
    int threads = 0;  ///< 0: one per CPU core
    // The times of sizes from 192 to 384 differ by less than the noise of a busy machine. With these sizes the scores
    // of a tile and their gradients take 0.8 MB, which fits into a second-level cache of 2 MB.
    std::int64_t tile_rows = 192;
    std::int64_t tile_keys = 256;
};

/// Forward and backward pass in fp64 with BLAS: equal to dense_attention() up to rounding. Fully masked tiles are
/// skipped, and each thread holds the scores of one tile at a time, so memory beyond inputs and outputs is linear in
/// tokens. Throws Error if shapes or mask do not fit the problem, or a tile size is below 1.
Outputs blocked_attention(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                          const BlockedOptions& options = {});

/// The forward pass alone: fills o and lse.
void blocked_forward(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs, Outputs& outputs,
                     const BlockedOptions& options = {});

/// The backward pass alone: fills dq, dk and dv from o and lse.
void blocked_backward(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                      Outputs& outputs, const BlockedOptions& options = {});

/// Some query rows and some keys. The blocked reference and the samples are computed on patches. `rows` and `keys` are
/// increasing global positions; row i is token i of q, key j is token j of k and v.
struct Patch {
    const layouts::Problem& problem;
    const layouts::Mask& mask;
    std::span<const std::int64_t> rows;
    std::span<const std::int64_t> keys;
    const Tensor& q;
    const Tensor& k;
    const Tensor& v;
};

/// Computes o (batch, rows, query_heads, value_dim) and lse (batch, rows, query_heads) over the patch's keys, without
/// sinks. Both are overwritten.
void patch_forward(const Patch& patch, Tensor& o, Lse& lse, const BlockedOptions& options);

/// The gradients to compute; a null pointer leaves one out, which saves its matrix product. They are overwritten, with
/// the shapes of the patch's q, k and v.
struct PatchGradients {
    Tensor* dq = nullptr;
    Tensor* dk = nullptr;
    Tensor* dv = nullptr;
};

/// Computes the part of the gradients that the patch's pairs contribute. lse and delta are those of the rows over *all*
/// keys. dout has the shape (batch, rows, query_heads, value_dim), lse and delta (batch, rows, query_heads).
void patch_backward(const Patch& patch, const Tensor& dout, const Lse& lse, const Lse& delta,
                    const PatchGradients& gradients, const BlockedOptions& options);

/// delta = do.o of every row: (batch, rows, query_heads).
Lse row_delta(const Tensor& dout, const Tensor& o);

}  // namespace ringlab::reference
