#pragma once

#include <cstddef>
#include <vector>

namespace ringlab::experiments {

/// x >= 0 that minimises |A x - b|, for A of b.size() rows and `columns` columns, row-major: least squares (LAPACK
/// dgels) with the most negative unknown set to 0 and the rest solved again until none is negative. Throws Error if
/// there are fewer rows than columns or the system is singular.
std::vector<double> nonnegative_least_squares(const std::vector<double>& a, const std::vector<double>& b,
                                              std::size_t columns);

}  // namespace ringlab::experiments
