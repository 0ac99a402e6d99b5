#pragma once

#include "reference/blas.hpp"

namespace ringlab::reference {

/// Whether a matrix enters a product as it lies or transposed.
enum class Order { as_is, transposed };

/// c = alpha * a * b + beta * c on BLAS, in single or double precision; with beta = 0 the old c is not read.
template <class Real>
void product(Real alpha, MatrixView<const Real> a, Order a_order, MatrixView<const Real> b, Order b_order, Real beta,
             MatrixView<Real> c);

}  // namespace ringlab::reference
