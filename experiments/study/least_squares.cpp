#include "experiments/study/least_squares.hpp"

#include "layouts/require.hpp"

#include <algorithm>

extern "C" void dgels_(const char* trans, const int* m, const int* n, const int* nrhs, double* a, const int* lda,
                       double* b, const int* ldb, double* work, const int* lwork, int* info);

namespace ringlab::experiments {

std::vector<double> nonnegative_least_squares(const std::vector<double>& a, const std::vector<double>& b,
                                              std::size_t columns) {
    const auto rows = b.size();
    require(rows >= columns && a.size() == rows * columns, "{} equations do not determine {} unknowns", rows, columns);
    std::vector<std::size_t> free_columns;
    for (std::size_t i = 0; i < columns; ++i) free_columns.push_back(i);
    std::vector<double> x(columns, 0.0);
    while (!free_columns.empty()) {
        // A's free columns, stored row by row, are the transposed matrix in LAPACK's column-major order.
        std::vector<double> matrix, right = b, work(64 * (rows + columns));
        for (std::size_t row = 0; row < rows; ++row)
            for (const auto column : free_columns) matrix.push_back(a[row * columns + column]);
        const int m = static_cast<int>(free_columns.size()), n = static_cast<int>(rows), one = 1, ldb = n,
                  lwork = static_cast<int>(work.size());
        int info = 0;
        dgels_("T", &m, &n, &one, matrix.data(), &m, right.data(), &ldb, work.data(), &lwork, &info);
        require(info == 0, "least squares of {} unknowns is singular: the equations do not tell them apart", columns);
        const auto lowest = std::min_element(right.begin(), right.begin() + m);
        if (*lowest >= 0) {
            for (std::size_t i = 0; i < free_columns.size(); ++i) x[free_columns[i]] = right[i];
            break;
        }
        free_columns.erase(free_columns.begin() + (lowest - right.begin()));
    }
    return x;
}

}  // namespace ringlab::experiments
