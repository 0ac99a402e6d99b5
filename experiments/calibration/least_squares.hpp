#pragma once

#include <cstddef>
#include <vector>

namespace ringlab::experiments {

/// Relative error of a measured time, at least: in calibrate_2xh200.h5 and calibrate_4xh200.h5 the quartiles of 95 in
/// 100 timed attends lie 0.2 % of the median apart, or more.
inline constexpr double timing_error = 1e-3;

/// A solution of least squares.
struct LeastSquares {
    std::vector<double> values;
    std::vector<bool> determined;  ///< by unknown; the value of one that the equations do not determine is 0
};

/// x >= 0 that minimises |A x - b|, for A of b.size() rows and `columns` columns, row-major, where b is known to
/// timing_error. An unknown is not determined if its column is 0, or a sum of multiples of the columns before it as far
/// as b can tell: so columns go by importance. Solves by LAPACK's dgelsy, sets the most negative unknown to 0 and
/// solves for the rest again until none is negative. Throws Error if numbers are not finite, or not as many as the
/// sizes say.
LeastSquares nonnegative_least_squares(const std::vector<double>& a, const std::vector<double>& b, std::size_t columns);

}  // namespace ringlab::experiments
