#pragma once

#include "gpu/elements/views.hpp"

#include <cuda_runtime_api.h>

#include <iosfwd>

// Kernels that do one thing each with the wrappers of gpu/kernels/hopper.

namespace ringlab::tests {

/// Where a product's operand comes from.
enum class Source {
    rows_outer,   ///< shared memory, the summed index along the rows' columns
    rows_summed,  ///< shared memory, the summed index over the rows
    registers,    ///< of A alone
};

std::ostream& operator<<(std::ostream& out, Source source);

struct ProbeShape {
    Source a = Source::rows_outer, b = Source::rows_outer;
    int n = 128;  ///< one of those in probe_widths
};

constexpr int probe_widths[] = {32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256};
constexpr int probe_rows = 128, probe_depth = 128;  ///< two warpgroups of 64 rows; summed length

/// Which of them probe_product is compiled for: a transposed B has whole stretches of 64 columns; fp16 differs in the
/// instruction's type alone.
constexpr bool has_width(gpu::DType dtype, Source b, int n) {
    return (b == Source::rows_outer || n % 64 == 0) && (dtype == gpu::DType::bf16 || n == 128);
}

/// d (probe_rows x n, fp32) = A B, then d += A B with the second halves of the sum once more, of dense 16-bit matrices:
/// a is (probe_rows, probe_depth), or (probe_depth, probe_rows) for rows_summed; b is (n, probe_depth) or (probe_depth,
/// n).
void probe_product(const ProbeShape& shape, gpu::DType dtype, const void* a, const void* b, float* d);

/// Rows [first, first + 64) of one head of a (batch, tokens, heads, dim) tensor of 16-bit elements through shared
/// memory to `to`, dense (64, 64), what lies outside as zeros.
void probe_load(const gpu::ConstView& from, const gpu::Extent& extent, int dim, int token, int head, int batch,
                std::uint16_t* to);

/// Adds 1, 2, 3, ... (64 rows of 32 columns, fp32) to the box at (dim, token, head, batch).
void probe_add_box(const gpu::View& to, const gpu::Extent& extent, int dim, int token, int head, int batch);

}  // namespace ringlab::tests
