#pragma once

#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>
#include <random>
#include <string>

namespace ringlab::tests {

/// Independent normal numbers, the same for the same seed. The matrices of a latent are scaled, so that K and V of all
/// heads are as large as the latent.
inline reference::Inputs normal_inputs(const layouts::Problem& p, unsigned seed = 1) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const auto tensor = [&](const std::array<std::int64_t, 4>& shape) {
        auto numbers = reference::zeros_of(shape);
        for (auto& x : numbers) x = normal(random);
        return numbers;
    };
    reference::Inputs inputs;
    inputs.q = tensor({p.batch, p.rows(), p.query_heads, p.head_dim});
    inputs.k = tensor(p.key_shape());
    inputs.v = tensor(p.value_shape());
    inputs.dout = tensor({p.batch, p.rows(), p.query_heads, p.value_dim});
    if (p.latent.is_given()) inputs.v /= std::sqrt(static_cast<double>(p.latent.rank));
    return inputs;
}

/// Largest error of each result that fp64 arithmetic may make on these inputs, to first order (Higham, Accuracy and
/// Stability, chapter 3): a sum of n products is off by at most n*u times the sum of their magnitudes, in any order.
struct ErrorBounds {
    double o, lse, dq, dk, dv;

    ErrorBounds(const layouts::Problem& p, const reference::Inputs& in) {
        const auto largest = [](const reference::Tensor& t) {
            return std::accumulate(t.begin(), t.end(), 0.0,
                                   [](double a, double b) { return std::max(a, std::abs(b)); });
        };
        const double u = std::numeric_limits<double>::epsilon() / 2;
        const double head_dim = static_cast<double>(p.head_dim), value_dim = static_cast<double>(p.value_dim),
                     tokens = static_cast<double>(p.tokens);
        const double kept = p.dropout.factor();  // of a p that is kept, wherever one meets v or do
        const double q = largest(in.q), k = largest(in.k), v = kept * largest(in.v), dout = largest(in.dout);
        const double scale = std::abs(p.effective_scale());
        // exp, log and tanh are good to 2 units here, and a running softmax rescales once per tile: 8 covers a few.
        const double slack = 8;

        const double s = (head_dim + slack) * u * scale * head_dim * q * k;  // of a score, capped or not
        lse = s + (tokens + slack) * u * (1 + scale * head_dim * q * k);
        const double p_relative = s + lse + slack * u;
        o = v * (p_relative + (tokens + slack) * u);
        const double dp_size = value_dim * dout * v;  // of dp and of delta
        // ds = p (dp - delta) cap': relative to p, by the errors of p, dp, delta and, doubled, of the capped score.
        const double cap_relative = p.soft_cap > 0 ? 2 * (s / p.soft_cap + slack * u) : 0;
        const double ds =
            2 * dp_size * (p_relative + cap_relative + slack * u) + 2 * value_dim * u * dp_size + value_dim * dout * o;
        // The p of a row sum to 1; those of a key, over rows and query heads that read it, to at most all of them.
        const double rows = tokens * static_cast<double>(p.query_heads_per_kv_head());
        dq = scale * k * (ds + (tokens + slack) * u * 2 * dp_size);
        dk = rows * scale * q * (ds + (rows + slack) * u * 2 * dp_size);
        dv = rows * kept * dout * (p_relative + (rows + slack) * u);
    }
};

/// A problem and a mask to judge on, and what a failure says.
struct AttentionCase {
    layouts::Problem problem;
    std::string mask;

    friend std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
        const auto& p = c.problem;
        return out << c.mask << ", batch " << p.batch << ", tokens " << p.tokens << ", heads " << p.query_heads << ":"
                   << p.kv_heads << ", dims " << p.head_dim << "/" << p.value_dim << ", scale " << p.scale
                   << ", soft-cap " << p.soft_cap << ", dropout " << text_of(p.dropout);
    }
};

}  // namespace ringlab::tests
