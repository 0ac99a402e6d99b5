#pragma once

#include "layouts/mask.hpp"
#include "layouts/problem.hpp"
#include "reference/tensors.hpp"

#include <cstdint>
#include <span>

namespace ringlab::reference {

/// How the blocked reference divides its work. Results depend on the tile sizes by rounding alone, and on the number
/// of threads not at all, bit for bit.
struct BlockedOptions {
    int threads = 0;  ///< 0: one per processor
    // Sizes from 192 to 384 differ by less than a busy machine's noise; with these the scores of a tile and their
    // gradients are 0.8 MB, which fits a second-level cache of 2 MB.
    std::int64_t tile_rows = 192;
    std::int64_t tile_keys = 256;
};

/// Forward and backward in fp64 on BLAS: equal to dense_attention() but for rounding. Tiles that the mask empties are
/// skipped, scores exist for one tile per thread at a time, so memory beyond inputs and outputs is linear in tokens.
/// Throws Error if shapes and mask do not belong to the problem, or a tile size is below 1.
Outputs blocked_attention(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                          const BlockedOptions& options = {});

/// The forward pass alone: fills o and lse.
void blocked_forward(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs, Outputs& outputs,
                     const BlockedOptions& options = {});

/// The backward pass alone: fills dq, dk and dv from o and lse.
void blocked_backward(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                      Outputs& outputs, const BlockedOptions& options = {});

/// Some query rows against some keys: what the blocked reference works on, and samples are computed by.
/// `rows` and `keys` are increasing global positions; row i lies at token i of q, key j at token j of k and v.
struct Patch {
    const layouts::Problem& problem;
    const layouts::Mask& mask;
    std::span<const std::int64_t> rows;
    std::span<const std::int64_t> keys;
    const Tensor& q;
    const Tensor& k;
    const Tensor& v;
};

/// o (batch, rows, query_heads, value_dim) and lse (batch, rows, query_heads) over the patch's keys, without sinks;
/// overwritten.
void patch_forward(const Patch& patch, Tensor& o, Lse& lse, const BlockedOptions& options);

/// Gradients to compute: null leaves one out, and saves its product. Shapes as the patch's q, k and v; overwritten.
struct PatchGradients {
    Tensor* dq = nullptr;
    Tensor* dk = nullptr;
    Tensor* dv = nullptr;
};

/// The part of the gradients that the patch's pairs contribute; lse and delta are those of the rows over *all* keys.
/// dout (batch, rows, query_heads, value_dim), lse and delta (batch, rows, query_heads).
void patch_backward(const Patch& patch, const Tensor& dout, const Lse& lse, const Lse& delta,
                    const PatchGradients& gradients, const BlockedOptions& options);

/// delta = do.o of every row: (batch, rows, query_heads).
Lse row_delta(const Tensor& dout, const Tensor& o);

}  // namespace ringlab::reference
