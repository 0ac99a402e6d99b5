#include "experiments/study/least_squares.hpp"

#include "layouts/require.hpp"

#include <lapacke.h>

#include <algorithm>

namespace ringlab::experiments {

std::vector<double> nonnegative_least_squares(const std::vector<double>& a, const std::vector<double>& b,
                                              std::size_t columns) {
    const auto rows = b.size();
    require(rows >= columns && a.size() == rows * columns, "{} equations do not determine {} unknowns", rows, columns);
    std::vector<std::size_t> free_columns;
    for (std::size_t i = 0; i < columns; ++i) free_columns.push_back(i);
    std::vector<double> x(columns, 0.0);
    while (!free_columns.empty()) {
        std::vector<double> matrix, right = b;
        for (std::size_t row = 0; row < rows; ++row)
            for (const auto column : free_columns) matrix.push_back(a[row * columns + column]);
        const auto unknowns = static_cast<lapack_int>(free_columns.size());
        const auto info = LAPACKE_dgels(LAPACK_ROW_MAJOR, 'N', static_cast<lapack_int>(rows), unknowns, 1,
                                        matrix.data(), unknowns, right.data(), 1);
        require(info == 0, "least squares of {} unknowns is singular: the equations do not tell them apart", columns);
        const auto lowest = std::min_element(right.begin(), right.begin() + unknowns);
        if (*lowest >= 0) {
            for (std::size_t i = 0; i < free_columns.size(); ++i) x[free_columns[i]] = right[i];
            break;
        }
        free_columns.erase(free_columns.begin() + (lowest - right.begin()));
    }
    return x;
}

}  // namespace ringlab::experiments
