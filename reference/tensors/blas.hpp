#pragma once

#include <cstdint>
#include <type_traits>

namespace ringlab::reference {

/// A row-major matrix somewhere in memory: row r begins at data + r*stride.
template <class Element>
struct MatrixView {
    Element* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t stride = 0;

    operator MatrixView<const Element>() const { return {data, rows, columns, stride}; }
    Element* row(std::int64_t r) const { return data + r * stride; }
};
using Matrix = MatrixView<double>;
using ConstMatrix = MatrixView<const double>;

/// A factor of a matrix product: a matrix, possibly transposed.
template <class Real>
struct Factor {
    MatrixView<const Real> matrix;
    bool transposed = false;

    Factor(MatrixView<const Real> m, bool is_transposed = false) : matrix(m), transposed(is_transposed) {}
    Factor(MatrixView<Real> m) : matrix(m) {}
};
template <class Element>
Factor<std::remove_const_t<Element>> transpose(MatrixView<Element> matrix) {
    return {matrix, true};
}

/// c = alpha * a * b, or c += alpha * a * b. The old c of the former is not read.
void multiply(double alpha, Factor<double> a, Factor<double> b, Matrix c);
void multiply(float alpha, Factor<float> a, Factor<float> b, MatrixView<float> c);
void multiply_add(double alpha, Factor<double> a, Factor<double> b, Matrix c);
void multiply_add(float alpha, Factor<float> a, Factor<float> b, MatrixView<float> c);

/// Number of threads that a BLAS call may use now.
int blas_threads();

/// While an object of this type exists, each BLAS call runs on the calling thread only; its destructor restores the
/// number of threads. The number belongs to the whole process: create one object before starting threads, not one in
/// each thread.
class SingleThreadedBlas {
public:
    SingleThreadedBlas();
    ~SingleThreadedBlas();
    SingleThreadedBlas(const SingleThreadedBlas&) = delete;
    SingleThreadedBlas& operator=(const SingleThreadedBlas&) = delete;

private:
    int threads_before_;
};

}  // namespace ringlab::reference
