#pragma once

#include "layouts/dropout.hpp"
#include "layouts/rotary.hpp"
#include "layouts/units.hpp"

#include <array>
#include <span>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// What K and V of all heads are made of in multi-head latent attention (DeepSeek-V2, 2024, arXiv 2405.04434): of each
/// token one vector, the latent: `rank` numbers that a head's matrices make its own K dims and its V of, and behind
/// them `shared` numbers that are the last dims of every head's K as they are (where the rotary embedding goes).
struct Latent {
    std::int64_t rank = 0;  ///< 0: there is none, K and V are given
    std::int64_t shared = 0;

    bool is_given() const { return rank > 0; }
    std::int64_t width() const { return rank + shared; }
    friend bool operator==(const Latent&, const Latent&) = default;
};

/// From what a user types: "512+64", "512". Throws Error that says what would be right.
Latent parse_latent(const std::string& spec);

/// "none" or "512+64".
std::string text_of(const Latent& latent);

/// The attention to compute: its sizes and its arithmetic, not how it is spread over ranks.
///
/// Tensors are (batch, tokens, heads, dim): Q (batch, rows, query_heads, head_dim), K (batch, tokens, kv_heads,
/// head_dim), V (batch, tokens, kv_heads, value_dim), O and dO (batch, rows, query_heads, value_dim),
/// lse (batch, rows, query_heads), natural logarithm.
///
/// With a latent, what K and V are made of stands in their places, and so do its gradients in those of dK and dV: for
/// K the latent (batch, tokens, 1, latent.width()), for V the matrices (1, kv_heads, own_key_dim() + value_dim,
/// latent.rank), of each head first the rows that make its K's own dims, then those that make its V; so a
/// linear layer keeps them (DeepSeek's kv_b_proj).
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
    Latent latent = {};
    /// Learned sink logits, one for each query head, or none: the softmax's denominator of a head's rows gains exp of
    /// its logit, which has a gradient. They are as scores behind scale and soft-cap, natural, and not dropped out.
    std::vector<double> sinks = {};
    Dropout dropout = {};  ///< of p in both passes; lse is without
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

    /// (batch, tokens, heads, dim) of what is given as K and V.
    std::array<std::int64_t, 4> key_shape() const;
    std::array<std::int64_t, 4> value_shape() const;

    /// With a latent: dims of K that the matrices make, and their rows for one head.
    std::int64_t own_key_dim() const { return head_dim - latent.shared; }
    std::int64_t expanded_dim() const { return own_key_dim() + value_dim; }

    /// The same attention over K and V that the latent was expanded to.
    Problem expanded() const;

    /// With a latent: the problem whose only key of a token is its latent, rotated where that is; otherwise this one.
    Problem with_latent_as_key() const;

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
