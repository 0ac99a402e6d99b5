#pragma once

#include "layouts/problem.hpp"
#include "reference/blas.hpp"
#include "reference/tensors.hpp"

#include <vector>

namespace ringlab::reference {

/// The matrices that make K and V of a latent, and their gradient by what one rank attends to; in the arithmetic of
/// `Real`. With a 16-bit dtype the operands of every product are numbers of that type, as on a GPU: dk and dv are
/// rounded before they are compressed, while sums stay in Real. One object per thread.
template <class Real>
class LatentMatrices {
public:
    using View = MatrixView<Real>;
    using ConstView = MatrixView<const Real>;

    /// `matrices` as layouts::Problem has them in V's place.
    LatentMatrices(const layouts::Problem& problem, const Tensor& matrices);

    /// All dims of a head's K and V, from as many tokens' latents; not rounded.
    void expand(int head, ConstView latent, View k, View v) const;

    /// From here on compress() sums up the matrices' gradient, from 0.
    void begin_gradient() { gradient_.assign(matrices_.size(), 0); }

    /// Adds what one head's dk and dv are for the latent to its gradient, and what they are for the matrices to theirs.
    void compress(int head, ConstView dk, ConstView dv, ConstView latent, View dlatent);

    std::vector<double> gradient() const { return {gradient_.begin(), gradient_.end()}; }
    std::int64_t bytes() const { return bytes_of(matrices_) + bytes_of(gradient_); }
    std::int64_t workspace_bytes() const { return static_cast<std::int64_t>(rows_.capacity() * sizeof(Real)); }

private:
    static std::int64_t bytes_of(const std::vector<Real>& numbers) {
        return static_cast<std::int64_t>(numbers.size() * sizeof(Real));
    }
    template <class Numbers>
    auto of_head(Numbers& numbers, int head) const;

    const layouts::Problem& problem_;
    std::vector<Real> matrices_, gradient_;  // (kv heads, expanded_dim, rank)
    std::vector<Real> rows_;                 // of a head: own dims of dk, then dv, of all tokens
};

}  // namespace ringlab::reference
