#pragma once

#include "layouts/problem.hpp"
#include "reference/tensors.hpp"

namespace ringlab::reference {

/// Inputs with K and V of all heads, made in fp64 of a latent and its matrices and rounded to the problem's dtype:
/// those of problem.expanded(). Of token t and head h, with c the latent's first numbers and W the head's matrices:
///     k = (W_k c, the shared numbers)        v = W_v c
Inputs expanded(const layouts::Problem& problem, const Inputs& inputs);

/// Gradients by k and v of all heads, in `outputs`, made gradients by the latent and the matrices of `inputs`:
///     dc = sum_h W_k^T dk + W_v^T dv       dshared = sum_h dk's last dims       dW_k = sum_t dk c^T, dW_v = sum_t dv
///     c^T
void compress(const layouts::Problem& problem, const Inputs& inputs, Outputs& outputs);

}  // namespace ringlab::reference
