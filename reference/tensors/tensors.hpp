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

/// (batch, tokens, query_heads): natural logarithm of the sum of exponentials of a row's scores, -inf for a fully
/// masked row.
template <class Scalar>
using LseOf = xt::xtensor<Scalar, 3>;
using Lse = LseOf<double>;

/// Inputs of attention, with the shapes given at layouts::Problem: k and v may be a latent and its matrices. `dout` is
/// the gradient of the loss with respect to the output.
template <class Scalar>
struct InputsOf {
    TensorOf<Scalar> q, k, v, dout;
};
using Inputs = InputsOf<double>;

/// Results of a forward and a backward pass. o has the shape of dout; dq, dk and dv have those of q, k and v.
template <class Scalar>
struct OutputsOf {
    TensorOf<Scalar> o;
    LseOf<Scalar> lse;
    TensorOf<Scalar> dq, dk, dv;
    std::vector<Scalar> dsinks = {};  ///< gradients of sink logits, by query head; empty if there are no sinks
};
using Outputs = OutputsOf<double>;

}  // namespace ringlab::reference
