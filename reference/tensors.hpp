#pragma once

#if __has_include(<xtensor/containers/xtensor.hpp>)
#include <xtensor/containers/xtensor.hpp>
#else
#include <xtensor/xtensor.hpp>
#endif

#include <vector>

namespace ringlab::reference {

/// (batch, tokens, heads, dim), row-major; tokens in global order.
template <class Scalar>
using TensorOf = xt::xtensor<Scalar, 4>;
using Tensor = TensorOf<double>;

/// (batch, tokens, query_heads): natural logarithm of the sum of exponentials of a row's scores, -inf for an empty row.
template <class Scalar>
using LseOf = xt::xtensor<Scalar, 3>;
using Lse = LseOf<double>;

/// What attention is computed from; shapes as in layouts::Problem: k and v may be a latent and its matrices. `dout` is
/// the gradient of the loss by the output.
template <class Scalar>
struct InputsOf {
    TensorOf<Scalar> q, k, v, dout;
};
using Inputs = InputsOf<double>;

/// What a forward and a backward pass give: o like dout, dq, dk and dv like q, k and v, gradients by sink logits.
template <class Scalar>
struct OutputsOf {
    TensorOf<Scalar> o;
    LseOf<Scalar> lse;
    TensorOf<Scalar> dq, dk, dv;
    std::vector<Scalar> dsinks = {};  ///< by query head; empty where the problem has no sinks
};
using Outputs = OutputsOf<double>;

}  // namespace ringlab::reference
