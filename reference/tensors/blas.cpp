#include "reference/tensors/blas.hpp"

#include <cblas.h>

namespace ringlab::reference {
namespace {

void gemm(double alpha, const Factor& a, const Factor& b, double beta, const Matrix& c) {
    const auto inner = a.transposed ? a.matrix.rows : a.matrix.columns;
    const auto order = [](const Factor& factor) { return factor.transposed ? CblasTrans : CblasNoTrans; };
    const auto index = [](std::int64_t value) { return static_cast<blasint>(value); };
    cblas_dgemm(CblasRowMajor, order(a), order(b), index(c.rows), index(c.columns), index(inner), alpha, a.matrix.data,
                index(a.matrix.stride), b.matrix.data, index(b.matrix.stride), beta, c.data, index(c.stride));
}

}  // namespace

void multiply(double alpha, Factor a, Factor b, Matrix c) { gemm(alpha, a, b, 0, c); }
void multiply_add(double alpha, Factor a, Factor b, Matrix c) { gemm(alpha, a, b, 1, c); }

int blas_threads() { return openblas_get_num_threads(); }

SingleThreadedBlas::SingleThreadedBlas() : threads_before_(blas_threads()) { openblas_set_num_threads(1); }
SingleThreadedBlas::~SingleThreadedBlas() { openblas_set_num_threads(threads_before_); }

}  // namespace ringlab::reference
