#include "reference/tensors/blas.hpp"

#include <cblas.h>

namespace ringlab::reference {
namespace {

template <class Real, class Gemm>
void product(Gemm gemm, Real alpha, const Factor<Real>& a, const Factor<Real>& b, Real beta,
             const MatrixView<Real>& c) {
    const auto inner = a.transposed ? a.matrix.rows : a.matrix.columns;
    const auto order = [](const Factor<Real>& factor) { return factor.transposed ? CblasTrans : CblasNoTrans; };
    const auto index = [](std::int64_t value) { return static_cast<blasint>(value); };
    gemm(CblasRowMajor, order(a), order(b), index(c.rows), index(c.columns), index(inner), alpha, a.matrix.data,
         index(a.matrix.stride), b.matrix.data, index(b.matrix.stride), beta, c.data, index(c.stride));
}

}  // namespace

void multiply(double alpha, Factor<double> a, Factor<double> b, Matrix c) { product(cblas_dgemm, alpha, a, b, 0.0, c); }
void multiply(float alpha, Factor<float> a, Factor<float> b, MatrixView<float> c) {
    product(cblas_sgemm, alpha, a, b, 0.0f, c);
}
void multiply_add(double alpha, Factor<double> a, Factor<double> b, Matrix c) {
    product(cblas_dgemm, alpha, a, b, 1.0, c);
}
void multiply_add(float alpha, Factor<float> a, Factor<float> b, MatrixView<float> c) {
    product(cblas_sgemm, alpha, a, b, 1.0f, c);
}

int blas_threads() { return openblas_get_num_threads(); }

SingleThreadedBlas::SingleThreadedBlas() : threads_before_(blas_threads()) { openblas_set_num_threads(1); }
SingleThreadedBlas::~SingleThreadedBlas() { openblas_set_num_threads(threads_before_); }

}  // namespace ringlab::reference
