#pragma once

#include "reference/attention/blocked.hpp"

#include <vector>

namespace ringlab::reference {

/// The tokens of a tensor at global `positions`: (batch, positions, heads, dim).
Tensor take_tokens(const Tensor& tensor, const std::vector<std::int64_t>& positions);

/// The rows of Q, dO, O or dQ at global `positions`, each of which must have a query row.
Tensor take_rows(const layouts::Problem& problem, const Tensor& tensor, const std::vector<std::int64_t>& positions);

/// Exact fp64 results of a few query rows, for sequences that are too long to compute completely.
struct SampledRows {
    std::vector<std::int64_t> rows;  ///< global positions, increasing
    Tensor o;                        ///< (batch, rows, query_heads, value_dim)
    Lse lse;                         ///< (batch, rows, query_heads)
    Tensor dq;                       ///< (batch, rows, query_heads, head_dim)
};

/// Computes o, lse and dq of the given rows. The cost is that of the forward and most of the backward pass for the
/// visible pairs of these rows, so it is linear in tokens. Throws Error unless `rows` are increasing positions of query
/// rows, or if shapes do not fit the problem.
SampledRows sampled_rows(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                         std::vector<std::int64_t> rows, const BlockedOptions& options = {});

/// Exact fp64 gradients of a few keys and values.
struct SampledColumns {
    std::vector<std::int64_t> columns;  ///< global positions, increasing
    Tensor dk;                          ///< (batch, columns, kv_heads, head_dim)
    Tensor dv;                          ///< (batch, columns, kv_heads, value_dim)
};

/// Statistics of query rows that the gradients of the keys that they see depend on.
struct RowStatistics {
    std::vector<std::int64_t> rows;  ///< global positions, increasing
    Lse lse;                         ///< (batch, rows, query_heads), over all keys that the row sees
    Lse delta;                       ///< (batch, rows, query_heads), do.o
};

/// Global positions of the query rows that see at least one of the columns (keys).
std::vector<std::int64_t> rows_that_see(const layouts::Problem& problem, const layouts::Mask& mask,
                                        const std::vector<std::int64_t>& columns);

/// Exact statistics of rows_that_see(columns). This is the expensive part of sampling columns, a full forward pass of
/// those rows: tokens^2/2 pairs under a causal mask with an early column, but only the rows of the window under a
/// window mask.
RowStatistics row_statistics(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                             const std::vector<std::int64_t>& columns, const BlockedOptions& options = {});

/// Computes dk and dv of the given columns from given statistics; the cost is linear in tokens. The results are as
/// exact as the statistics: if lse and delta come from the run under test, check them with sampled_rows() first. Throws
/// Error unless the statistics contain every row that sees a column, `columns` increase and lie in the sequence, and
/// shapes fit the problem.
SampledColumns sampled_columns(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                               std::vector<std::int64_t> columns, const RowStatistics& statistics,
                               const BlockedOptions& options = {});

}  // namespace ringlab::reference
