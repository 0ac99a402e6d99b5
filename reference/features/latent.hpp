#pragma once

#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

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

}  // namespace ringlab::reference
