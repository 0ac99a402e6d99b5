#pragma once

#include "layouts/basics/basic_types.hpp"
#include "layouts/problem/dropout.hpp"
#include "layouts/problem/rotary.hpp"

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// Sizes of the latent of multi-head latent attention (DeepSeek-V2, 2024, arXiv 2405.04434): one vector per token, from
/// which K and V of all heads are computed. From its first `rank` elements the matrices of a head compute the head's
/// own K dims and its V. Its last `shared` elements are the last K dims of every head, unchanged (the rotary embedding
/// rotates these).
struct Latent {
    std::int64_t rank = 0;    ///< 0: there is no latent, K and V are given
    std::int64_t shared = 0;  ///< K dims that all heads share

    bool is_given() const { return rank > 0; }
    std::int64_t width() const { return rank + shared; }
    friend bool operator==(const Latent&, const Latent&) = default;
};

/// Parses "512+64" (rank and shared dims) or "512" (nothing shared). Throws Error that says what would be right.
Latent parse_latent(const std::string& spec);

/// "none" or "512+64".
std::string text_of(const Latent& latent);

/// The attention to compute: its sizes and its arithmetic, not how it is spread over ranks.
///
/// Tensors are (batch, tokens, heads, dim): Q (batch, rows, query_heads, head_dim), K (batch, tokens, kv_heads,
/// head_dim), V (batch, tokens, kv_heads, value_dim), O and dO (batch, rows, query_heads, value_dim),
/// lse (batch, rows, query_heads), natural logarithm.
///
/// With a latent, the inputs are not K and V but what they are computed from: in the place of K the latent
/// (batch, tokens, 1, latent.width()), in the place of V the matrices (1, kv_heads, own_key_dim() + value_dim,
/// latent.rank). The matrices of a head have first the rows that compute its own K dims, then those that compute its V,
/// as in the weight of a linear layer (DeepSeek's kv_b_proj). Their gradients take the places of dK and dV.
struct Problem {
    std::int64_t batch = 1;
    std::int64_t tokens = 0;  ///< of the whole sequence, padding included
    std::int64_t query_heads = 1;
    std::int64_t kv_heads = 1;  ///< query head h reads kv head h / query_heads_per_kv_head()
    std::int64_t head_dim = 128;
    std::int64_t value_dim = 128;
    double scale = 0;           ///< factor of q.k; 0 means 1/sqrt(head_dim)
    double soft_cap = 0;        ///< c > 0 turns a score s into c*tanh(s/c); 0 leaves it
    DType dtype = DType::bf16;  ///< of Q, K, V and dO, in memory and on the wire
    /// Rotary embedding of Q and K before attention; its transpose is applied to dQ and dK. Schedules and attention
    /// kernels see only the rotated Q and K, which have the same dtype.
    Rotary rotary = {};
    Latent latent = {};
    /// Learned sink logits, one for each query head; empty: none. The softmax denominator of each row of a head gets
    /// the additional term exp(logit), and the logit has a gradient. Logits are on the scale of scores after `scale`
    /// and soft-cap, and dropout does not apply to them.
    std::vector<double> sinks = {};
    Dropout dropout = {};  ///< of p, the same in both passes; lse is that without dropout
    /// Positions that have a query row, as sorted disjoint intervals; empty: all positions have one. Only some have one
    /// when a suffix follows a cached prefix, or in decoding, where the newest token of each sequence has a row.
    std::vector<Interval> queries = {};

    /// Number of query rows.
    std::int64_t rows() const;
    /// Global positions of all query rows, in the order of Q.
    std::vector<std::int64_t> row_positions() const;
    /// Number of query rows at positions below `position`: the index in Q of the row at `position`, if it has one.
    std::int64_t rows_below(std::int64_t position) const;
    /// rows_below() of each of these positions.
    std::vector<std::int64_t> row_indices_of(std::span<const std::int64_t> positions) const;

    std::int64_t query_heads_per_kv_head() const { return query_heads / kv_heads; }
    double effective_scale() const;

    /// Shapes of the inputs K and V, or with a latent of those in their places, as above.
    std::array<std::int64_t, 4> key_shape() const;
    std::array<std::int64_t, 4> value_shape() const;

    /// With a latent: K dims of a head that its matrices compute, and rows of these matrices for K and V together.
    std::int64_t own_key_dim() const { return head_dim - latent.shared; }
    std::int64_t expanded_dim() const { return own_key_dim() + value_dim; }

    /// The same attention with given K and V: what remains once the latent was expanded.
    Problem expanded() const;

    /// With a latent: the problem with a single kv head whose K is the latent. Its rotated dims are where the latent's
    /// shared dims are. Without a latent: this problem.
    Problem with_latent_as_key() const;

    /// Floating-point operations for one visible (query, key) pair of one query head:
    /// forward q.k and p*v; backward q.k again, dO.v, dV, dQ and dK (5 products instead of 2).
    double forward_flop_per_pair() const { return 2.0 * static_cast<double>(head_dim + value_dim); }
    double backward_flop_per_pair() const { return 2.0 * static_cast<double>(3 * head_dim + 2 * value_dim); }

    /// Throws Error that names the value if a size, an option or a combination of them is invalid or not supported.
    void validate() const;

    friend bool operator==(const Problem&, const Problem&) = default;
};

/// Direction of a pass; a training step has one of each.
enum class Pass { forward, backward };

constexpr const char* to_string(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

/// Bytes of Q, K, V, O, dO, dQ, dK and dV together, with elements of `bytes_each` bytes; nullopt if that does not fit
/// into 64 bits.
std::optional<std::int64_t> tensor_bytes(const Problem& problem, std::int64_t bytes_each);

}  // namespace ringlab::layouts
