#pragma once

#include "layouts/rotary.hpp"
#include "layouts/units.hpp"

#include <span>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// The attention to compute: its sizes and its arithmetic, not how it is spread over ranks.
///
/// Tensors are (batch, tokens, heads, dim): Q (batch, rows, query_heads, head_dim), K (batch, tokens, kv_heads,
/// head_dim), V (batch, tokens, kv_heads, value_dim), O and dO (batch, rows, query_heads, value_dim),
/// lse (batch, rows, query_heads), natural logarithm.
struct Problem {
    std::int64_t batch = 1;
    std::int64_t tokens = 0;  ///< of the whole sequence, padding included
    std::int64_t query_heads = 1;
    std::int64_t kv_heads = 1;  ///< query head h reads kv head h / query_heads_per_kv_head()
    std::int64_t head_dim = 128;
    std::int64_t value_dim = 128;
    double scale = 0;           ///< of q.k; 0 stands for 1/sqrt(head_dim)
    double soft_cap = 0;        ///< c > 0 turns a score s into c*tanh(s/c); 0 leaves it
    DType dtype = DType::bf16;  ///< of Q, K, V and dO, in memory and on the wire
    /// What turns Q and K before they are attended to, and is undone on dQ and dK. Everything between knows rotated Q
    /// and K alone, which have the same dtype.
    Rotary rotary = {};
    /// Positions that have a query row, sorted and disjoint; none given: all have. Fewer rows than tokens are a suffix
    /// after a prefix whose K and V are at hand, or the newest token of every sequence in decoding.
    std::vector<Interval> queries = {};

    std::int64_t rows() const;
    /// The positions of all rows, in their order in Q.
    std::vector<std::int64_t> row_positions() const;
    /// How many rows lie at positions below `position`: the place in Q of a row that is there.
    std::int64_t row_at(std::int64_t position) const;
    std::vector<std::int64_t> rows_at(std::span<const std::int64_t> positions) const;

    std::int64_t query_heads_per_kv_head() const { return query_heads / kv_heads; }
    double effective_scale() const;

    /// Floating-point operations for one visible (query, key) pair of one query head:
    /// forward q.k and p*v; backward those of q.k again, do.v, dv, dq and dk (5 products against 2).
    double forward_flop_per_cell() const { return 2.0 * static_cast<double>(head_dim + value_dim); }
    double backward_flop_per_cell() const { return 2.0 * static_cast<double>(3 * head_dim + 2 * value_dim); }

    /// Throws Error unless all sizes are positive, query_heads is a multiple of kv_heads and queries lie in order.
    void validate() const;
};

/// Which way a pass goes; a training step is one of each.
enum class Pass { forward, backward };

constexpr const char* to_string(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

}  // namespace ringlab::layouts
