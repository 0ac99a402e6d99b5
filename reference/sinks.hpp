#pragma once

#include "layouts/problem.hpp"
#include "reference/tensors.hpp"

#include <cmath>
#include <vector>

namespace ringlab::reference {

// Learned sink logits (layouts::Problem::sinks): the softmax's denominator of a row gains exp(s) of its head. Nothing
// between inputs and merged results knows of it: with lse and o of all keys that a row sees,
//     lse' = log(exp(lse) + exp(s))      o' = o exp(lse - lse')
// and the backward pass runs on lse' and delta = do.o' as ever, beside
//     ds = -sum over rows of exp(s - lse') delta.
// A row that sees nothing has lse' = s and o' = 0, and so adds nothing to ds.

/// What a sink makes of a row's lse, -inf perhaps.
template <class Real>
Real lse_with_sink(Real lse, Real sink) {
    using std::exp, std::log1p;
    const Real larger = lse > sink ? lse : sink, smaller = lse > sink ? sink : lse;
    return larger + log1p(exp(smaller - larger));
}

/// Turns o (batch, rows, query_heads, value_dim) and lse (batch, rows, query_heads) over keys alone into what they are
/// with the problem's sinks; leaves them where it has none.
void add_sinks(const layouts::Problem& problem, Tensor& o, Lse& lse);

/// ds by head, from lse' and delta of rows (batch, rows, query_heads); empty where the problem has no sinks.
std::vector<double> sink_gradient(const layouts::Problem& problem, const Lse& lse, const Lse& delta);

}  // namespace ringlab::reference
