#pragma once

#include "reference/tensors.hpp"

namespace ringlab::reference {

/// Where no larger magnitude is expected of a tensor, it counts as 0: the square of such a number is not a double.
inline constexpr double vanishing = 0x1p-500;

/// How far a measured tensor is from the expected one. All are infinite if either holds a NaN, or one an infinity that
/// the other does not hold in the same place; equal infinities (-inf in the lse of empty rows) count as no error. Where
/// nothing but zeros is expected (dq and dk of rows that see one key), differences count as they are, over 1.
struct Deviation {
    double relative_rms = 0;    ///< norm of the difference over norm of expected
    double max_abs = 0;         ///< largest difference
    double max_to_largest = 0;  ///< largest difference over largest expected magnitude
};

/// Throws Error that gives both shapes if they differ; `name` says of what.
Deviation deviation(const char* name, const Tensor& measured, const Tensor& expected);
Deviation deviation(const char* name, const Lse& measured, const Lse& expected);

Deviation deviation(const char* name, const std::vector<double>& measured, const std::vector<double>& expected);

/// Each result on its own: a gate that looks at one gradient does not see an error of another.
struct OutputDeviations {
    Deviation o, lse, dq, dk, dv, dsinks;
};
OutputDeviations deviations(const Outputs& measured, const Outputs& expected);

}  // namespace ringlab::reference
