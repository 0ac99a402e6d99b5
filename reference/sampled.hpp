#pragma once

#include "reference/blocked.hpp"

#include <vector>

namespace ringlab::reference {

/// The tokens at `positions`: (batch, positions, heads, dim).
Tensor take_tokens(const Tensor& tensor, const std::vector<std::int64_t>& positions);

/// Those of Q or dO (or of O, dQ) whose rows lie at `positions`, all of which have one.
Tensor take_rows(const layouts::Problem& problem, const Tensor& tensor, const std::vector<std::int64_t>& positions);

/// Exact fp64 results of a few query rows, for sequences too long to judge whole.
struct SampledRows {
    std::vector<std::int64_t> rows;  ///< global positions, increasing
    Tensor o;                        ///< (batch, rows, query_heads, value_dim)
    Lse lse;                         ///< (batch, rows, query_heads)
    Tensor dq;                       ///< (batch, rows, query_heads, head_dim)
};

/// o, lse and dq of the given rows. Costs forward and most of backward for the rows' own visible pairs: linear in
/// tokens. Throws Error unless `rows` increase and are positions of query rows, or if shapes do not belong to the
/// problem.
SampledRows sampled_rows(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                         std::vector<std::int64_t> rows, const BlockedOptions& options = {});

/// Exact fp64 gradients of a few keys and values.
struct SampledColumns {
    std::vector<std::int64_t> columns;  ///< global positions, increasing
    Tensor dk;                          ///< (batch, columns, kv_heads, head_dim)
    Tensor dv;                          ///< (batch, columns, kv_heads, value_dim)
};

/// What the gradient of a key needs to know of every row that sees it.
struct RowStatistics {
    std::vector<std::int64_t> rows;  ///< global positions, increasing
    Lse lse;                         ///< (batch, rows, query_heads), over all keys that the row sees
    Lse delta;                       ///< (batch, rows, query_heads), do.o
};

/// The rows that see at least one of the columns.
std::vector<std::int64_t> rows_that_see(const layouts::Problem& problem, const layouts::Mask& mask,
                                        const std::vector<std::int64_t>& columns);

/// Exact statistics of rows_that_see(columns). This is where the cost of sampling columns lies: a full forward pass of
/// those rows, under a causal mask and with an early column tokens^2/2 pairs; under a window only the window's rows.
RowStatistics row_statistics(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                             const std::vector<std::int64_t>& columns, const BlockedOptions& options = {});

/// dk and dv of the given columns from given statistics; cost linear in tokens. They are as exact as the statistics:
/// with lse and delta of the run under test, check those by sampled_rows() first. Throws Error unless the statistics
/// hold every row that sees a column, `columns` increase and lie in the sequence, and shapes belong to the problem.
SampledColumns sampled_columns(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                               std::vector<std::int64_t> columns, const RowStatistics& statistics,
                               const BlockedOptions& options = {});

}  // namespace ringlab::reference
