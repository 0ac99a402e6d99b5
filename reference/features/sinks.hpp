#pragma once

#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace ringlab::reference {

// Learned sink logits (layouts::Problem::sinks) add exp(s), with the logit s of the head, to the softmax denominator of
// every row. They are applied after all partial results are merged. With lse and o over all keys that a row sees,
//     lse' = log(exp(lse) + exp(s))      o' = o exp(lse - lse')
// and the backward pass uses lse' and delta = do.o' in the usual way. The logit's gradient is
//     ds = -sum over rows of exp(s - lse') delta.
// A fully masked row has lse' = s and o' = 0, so it adds nothing to ds. The logit -inf is that of a head without a
// sink.

/// lse' of a row with a sink, from its lse; either may be -inf.
template <class Real>
Real lse_with_sink(Real lse, Real sink) {
    using std::exp, std::log1p;
    const Real larger = lse > sink ? lse : sink, smaller = lse > sink ? sink : lse;
    return smaller == -std::numeric_limits<Real>::infinity() ? larger : larger + log1p(exp(smaller - larger));
}

/// exp(lse - lse'), by which o is multiplied. The difference of two infinities would be NaN.
template <class Real>
Real share_beside_sink(Real lse, Real with) {
    return lse == with ? 1 : std::exp(lse - with);
}

/// exp(s - lse'), by which delta is multiplied.
template <class Real>
Real share_of_sink(Real sink, Real with) {
    return sink == -std::numeric_limits<Real>::infinity() ? 0 : std::exp(sink - with);
}

/// Replaces o (batch, rows, query_heads, value_dim) and lse (batch, rows, query_heads) over all keys by o' and lse'.
/// Does nothing if the problem has no sinks.
void add_sinks(const layouts::Problem& problem, Tensor& o, Lse& lse);

/// ds by query head, from lse' and delta of all rows (batch, rows, query_heads); empty if the problem has no sinks.
std::vector<double> sink_gradient(const layouts::Problem& problem, const Lse& lse, const Lse& delta);

}  // namespace ringlab::reference
