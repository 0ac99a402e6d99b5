#include "reference/ranks/kernels/cpu_product.hpp"

#include <cblas.h>

#include <type_traits>

namespace ringlab::reference {

template <class Real>
void product(Real alpha, MatrixView<const Real> a, Order a_order, MatrixView<const Real> b, Order b_order, Real beta,
             MatrixView<Real> c) {
    const auto inner = a_order == Order::as_is ? a.columns : a.rows;
    const auto blas = [](Order order) { return order == Order::as_is ? CblasNoTrans : CblasTrans; };
    const auto index = [](std::int64_t value) { return static_cast<blasint>(value); };
    const auto call = [&](auto gemm) {
        gemm(CblasRowMajor, blas(a_order), blas(b_order), index(c.rows), index(c.columns), index(inner), alpha, a.data,
             index(a.stride), b.data, index(b.stride), beta, c.data, index(c.stride));
    };
    if constexpr (std::is_same_v<Real, float>)
        call(cblas_sgemm);
    else
        call(cblas_dgemm);
}

template void product<float>(float, MatrixView<const float>, Order, MatrixView<const float>, Order, float,
                             MatrixView<float>);
template void product<double>(double, MatrixView<const double>, Order, MatrixView<const double>, Order, double,
                              MatrixView<double>);

}  // namespace ringlab::reference
