#pragma once

#include "layouts/basics/counts.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace ringlab::reference {

/// Throws Error that names the tensor and both shapes unless these are equal.
void require_shape(const char* name, const std::array<std::size_t, 4>& shape,
                   const std::array<std::int64_t, 4>& expected);

/// Throws Error unless the problem is valid, the mask covers its tokens and all four tensors have the shapes that it
/// requires.
template <class Scalar>
void require_inputs(const layouts::Problem& problem, const layouts::Mask& mask, const InputsOf<Scalar>& inputs) {
    problem.validate();
    require(mask.tokens() == problem.tokens, "the mask covers {} tokens, the problem has {}; they must be equal",
            mask.tokens(), problem.tokens);
    const auto& p = problem;
    require_shape("q", inputs.q.shape(), {p.batch, p.rows(), p.query_heads, p.head_dim});
    require_shape(p.latent.is_given() ? "k, the latent," : "k", inputs.k.shape(), p.key_shape());
    require_shape(p.latent.is_given() ? "v, the latent's matrices," : "v", inputs.v.shape(), p.value_shape());
    require_shape("dout", inputs.dout.shape(), {p.batch, p.rows(), p.query_heads, p.value_dim});
}

/// Attention by its definition, as plain loops, in any arithmetic: all other implementations are compared with it.
/// Scalar is float, double, long double or a Boost.Multiprecision number; the scale is the same double in all of them.
///
/// Follows Dao et al. 2022 (arXiv 2205.14135), section 3 and appendix B, with the soft-cap of Gemma 2
/// (arXiv 2408.00118) as an option. Sums over j are over the keys that the mask lets row i see.
template <class Scalar>
class Dense {
public:
    /// Keeps references. Throws Error if shapes or mask do not fit the problem, or if it has a latent, which must be
    /// expanded first, see latent.hpp.
    Dense(const layouts::Problem& problem, const layouts::Mask& mask, const InputsOf<Scalar>& inputs)
        : problem_(problem),
          mask_(mask),
          in_(inputs),
          scale_(problem.effective_scale()),
          cap_(problem.soft_cap),
          draw_(dropout_draw(problem.dropout)) {
        require_inputs(problem, mask, inputs);
        require(!problem.latent.is_given(), "dense attention needs K and V; expand latent {} first",
                text_of(problem.latent));
    }

    /// o and lse:
    ///     s_j = cap(scale * q.k_j)      lse = log sum_j exp(s_j)      o = sum_j d_j exp(s_j - lse) v_j
    /// A sink's logit is one more s_j in lse, without a v_j. d_j is 1, or with dropout 0 or 1 / (1 - rate). A
    /// fully masked row has lse = -inf and o = 0.
    void forward(OutputsOf<Scalar>& out) const {
        using std::exp, std::log;
        out.o = zeros_like(in_.dout);
        out.lse = LseOf<Scalar>({size(problem_.batch), size(problem_.rows()), size(problem_.query_heads)},
                                -std::numeric_limits<Scalar>::infinity());
        for_each_row([&](std::size_t b, std::size_t i, std::size_t h, std::size_t g, const Columns& keys) {
            const bool sinks = !problem_.sinks.empty();
            if (keys.empty() && !sinks) return;
            std::vector<Scalar> s;
            for (const auto j : keys) s.push_back(score(b, i, h, j, g));
            if (sinks) s.push_back(problem_.sinks[h]);  // belongs to no key: it adds to the sum and has no value

            // Shifted by the largest score, so that no exponential overflows.
            Scalar largest = s[0], sum = 0;
            for (const auto& x : s) largest = std::max(largest, x);
            for (const auto& x : s) sum += exp(x - largest);
            const Scalar lse = largest + log(sum);
            out.lse(b, i, h) = lse;

            for (std::size_t n = 0; n < keys.size(); ++n) {
                const Scalar p = dropped(b, i, h, keys[n]) * exp(s[n] - lse);
                for (std::size_t d = 0; d < value_dim(); ++d) out.o(b, i, h, d) += p * in_.v(b, keys[n], g, d);
            }
        });
    }

    /// dq, dk and dv from the o and lse of forward():
    ///     delta = do.o          p_j = exp(s_j - lse)          ds_j = p_j * (d_j do.v_j - delta) * cap'
    ///     dq = scale * sum_j ds_j k_j      dk_j += scale * ds_j q      dv_j += d_j p_j do
    ///     dsink = -sum of exp(sink - lse) delta
    /// where, for s = c*tanh(x/c), cap' = 1 - (s/c)^2.
    void backward(OutputsOf<Scalar>& out) const {
        using std::exp;
        out.dq = zeros_like(in_.q);
        out.dk = zeros_like(in_.k);
        out.dv = zeros_like(in_.v);
        out.dsinks.assign(problem_.sinks.size(), 0);
        for_each_row([&](std::size_t b, std::size_t i, std::size_t h, std::size_t g, const Columns& keys) {
            Scalar delta = 0;
            for (std::size_t d = 0; d < value_dim(); ++d) delta += in_.dout(b, i, h, d) * out.o(b, i, h, d);

            if (!out.dsinks.empty()) out.dsinks[h] -= exp(problem_.sinks[h] - out.lse(b, i, h)) * delta;
            for (const auto j : keys) {
                const Scalar s = score(b, i, h, j, g);
                const Scalar p = exp(s - out.lse(b, i, h));
                Scalar dp = 0;
                for (std::size_t d = 0; d < value_dim(); ++d) dp += in_.dout(b, i, h, d) * in_.v(b, j, g, d);
                const Scalar factor = dropped(b, i, h, j);
                Scalar ds = p * (factor * dp - delta);
                if (cap_ > 0) ds *= 1 - (s / cap_) * (s / cap_);

                for (std::size_t d = 0; d < head_dim(); ++d) {
                    out.dq(b, i, h, d) += scale_ * ds * in_.k(b, j, g, d);
                    out.dk(b, j, g, d) += scale_ * ds * in_.q(b, i, h, d);
                }
                for (std::size_t d = 0; d < value_dim(); ++d) out.dv(b, j, g, d) += factor * p * in_.dout(b, i, h, d);
            }
        });
    }

private:
    using Columns = std::vector<std::size_t>;

    static TensorOf<Scalar> zeros_like(const TensorOf<Scalar>& tensor) {
        return TensorOf<Scalar>(tensor.shape(), Scalar(0));
    }
    std::size_t head_dim() const { return size(problem_.head_dim); }
    std::size_t value_dim() const { return size(problem_.value_dim); }

    /// s = cap(scale * q.k), cap(x) = c*tanh(x/c) or x.
    Scalar score(std::size_t b, std::size_t i, std::size_t h, std::size_t j, std::size_t g) const {
        using std::tanh;
        Scalar dot = 0;
        for (std::size_t d = 0; d < head_dim(); ++d) dot += in_.q(b, i, h, d) * in_.k(b, j, g, d);
        const Scalar x = scale_ * dot;
        if (cap_ > 0) return cap_ * tanh(x / cap_);
        return x;
    }

    /// d_j: the factor of p under dropout.
    Scalar dropped(std::size_t b, std::size_t i, std::size_t h, std::size_t j) const {
        if (!problem_.dropout.drops()) return 1;
        const auto number = [](auto n) { return static_cast<std::uint32_t>(n); };
        const bool kept = draw_.keeps(number(b), number(h), number(positions_[i]), number(j));
        return kept ? 1 / (1 - Scalar(problem_.dropout.rate())) : Scalar(0);
    }

    /// visit(batch, row i, query head h, kv head g that h reads, keys that i sees)
    template <class Visit>
    void for_each_row(Visit visit) const {
        for (std::size_t i = 0; i < positions_.size(); ++i) {
            Columns keys;
            for (std::int64_t j = 0; j < problem_.tokens; ++j)
                if (mask_.visible(positions_[i], j)) keys.push_back(size(j));
            for (std::int64_t b = 0; b < problem_.batch; ++b)
                for (std::int64_t h = 0; h < problem_.query_heads; ++h)
                    visit(size(b), i, size(h), size(h / problem_.query_heads_per_kv_head()), keys);
        }
    }

    const layouts::Problem& problem_;
    const layouts::Mask& mask_;
    const InputsOf<Scalar>& in_;
    Scalar scale_, cap_;
    const layouts::DropoutDraw draw_;
    const std::vector<std::int64_t> positions_ = problem_.row_positions();
};

/// Forward and backward pass. For small cases, because it is slow and its time grows with the square of the tokens.
/// Throws Error if shapes or mask do not fit the problem.
template <class Scalar>
OutputsOf<Scalar> dense_attention(const layouts::Problem& problem, const layouts::Mask& mask,
                                  const InputsOf<Scalar>& inputs) {
    const Dense<Scalar> dense(problem, mask, inputs);
    OutputsOf<Scalar> out;
    dense.forward(out);
    dense.backward(out);
    return out;
}

}  // namespace ringlab::reference
