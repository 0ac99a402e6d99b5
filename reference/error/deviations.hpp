#pragma once

#include "reference/tensors/tensors.hpp"

namespace ringlab::reference {

/// A tensor whose expected magnitudes are all below this counts as 0, because the squares of such numbers underflow.
inline constexpr double vanishing = 0x1p-500;

/// How far a measured tensor is from the expected one. All fields are infinite if either tensor has a NaN, or an
/// infinity that the other does not have in the same place. Equal infinities (-inf in the lse of fully masked rows)
/// count as no error. If only zeros are expected (dq and dk of rows that see one key), the fields are absolute
/// differences.
struct Deviation {
    double relative_rms = 0;    ///< norm of the difference over norm of expected
    double max_abs = 0;         ///< largest difference
    double max_to_largest = 0;  ///< largest difference over largest expected magnitude
};

/// Compares two tensors. Throws Error that gives both shapes if they differ; `name` names the tensor in the message.
Deviation deviation(const char* name, const Tensor& measured, const Tensor& expected);
Deviation deviation(const char* name, const Lse& measured, const Lse& expected);

Deviation deviation(const char* name, const std::vector<double>& measured, const std::vector<double>& expected);

/// The deviation of each result separately, because a check of one gradient does not notice an error of another.
struct OutputDeviations {
    Deviation o, lse, dq, dk, dv, dsinks;
};
OutputDeviations deviations(const Outputs& measured, const Outputs& expected);

}  // namespace ringlab::reference
