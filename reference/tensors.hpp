#pragma once

#if __has_include(<xtensor/containers/xtensor.hpp>)
#include <xtensor/containers/xtensor.hpp>
#else
#include <xtensor/xtensor.hpp>
#endif

namespace ringlab::reference {

/// (batch, tokens, heads, dim), row-major; tokens in global order.
using Tensor = xt::xtensor<double, 4>;

/// (batch, tokens, query_heads): natural logarithm of the sum of exponentials of a row's scores, -inf for an empty row.
using Lse = xt::xtensor<double, 3>;

/// What attention is computed from; shapes as in layouts::Problem. `dout` is the gradient of the loss by the output.
struct Inputs {
    Tensor q, k, v, dout;
};

/// What a forward and a backward pass give: o like dout, dq, dk and dv like q, k and v.
struct Outputs {
    Tensor o;
    Lse lse;
    Tensor dq, dk, dv;
};

}  // namespace ringlab::reference
