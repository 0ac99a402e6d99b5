#pragma once

#include "reference/tensors/blas.hpp"

namespace ringlab::reference {

/// Whether a factor of a product is transposed.
enum class Order { as_is, transposed };

/// c = alpha * a * b + beta * c with BLAS, in single or double precision. With beta = 0 the old c is not read.
template <class Real>
void product(Real alpha, MatrixView<const Real> a, Order a_order, MatrixView<const Real> b, Order b_order, Real beta,
             MatrixView<Real> c);

}  // namespace ringlab::reference
