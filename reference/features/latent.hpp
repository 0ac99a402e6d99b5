#pragma once

#include "layouts/problem/problem.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/tensors.hpp"

#include <vector>

namespace ringlab::reference {

/// The inputs of problem.expanded(): K and V of all heads are computed in fp64 from a latent and its matrices and
/// rounded to the problem's dtype. For each token and head, with c the first `rank` elements of the token's latent and
/// W_k, W_v the head's matrices:
///     k = (W_k c, the shared elements)        v = W_v c
Inputs expanded(const layouts::Problem& problem, const Inputs& inputs);

/// Replaces the gradients of K and V of all heads, in `outputs`, by those of the latent and the matrices of `inputs`:
///     dc = sum_h W_k^T dk + W_v^T dv        dshared = sum_h dk's last dims
///     dW_k = sum_t dk c^T                   dW_v = sum_t dv c^T
void compress(const layouts::Problem& problem, const Inputs& inputs, Outputs& outputs);

/// The matrices by which K and V are computed from a latent, and one rank's part of their gradient, in the arithmetic
/// of `Real`. With a 16-bit dtype the operands of every product have that type, as on a GPU: dk and dv are rounded
/// before they are compressed. Sums stay in Real. One object per thread.
template <class Real>
class LatentMatrices {
public:
    using View = MatrixView<Real>;
    using ConstView = MatrixView<const Real>;

    /// `matrices`: the input in the place of V, see layouts::Problem.
    LatentMatrices(const layouts::Problem& problem, const Tensor& matrices);

    /// Computes all dims of a head's K and V from the latents of the same tokens, without rounding them.
    void expand(int head, ConstView latent, View k, View v) const;

    /// Sets the matrices' gradient to 0; compress() adds to it.
    void begin_gradient() { gradient_.assign(matrices_.size(), 0); }

    /// Adds the contributions of one head's dk and dv to the gradients of the latent and of the matrices.
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
    std::vector<Real> rows_;                 // of one head, all tokens: own dims of dk, then dv
};

}  // namespace ringlab::reference
