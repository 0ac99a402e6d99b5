#pragma once

#include "experiments/case.hpp"
#include "experiments/judge.hpp"

#include <array>

namespace ringlab::experiments {

/// How far results may be from fp64, in the order of judged_tensors.
struct Tolerance {
    std::array<double, judged_tensors.size()> relative_rms{};
    std::array<double, judged_tensors.size()> max_relative{};
};

/// The same for everything.
Tolerance uniform_tolerance(double largest);

/// What the arithmetic's roundings leave, by the model of Ringlab's error analysis: one rounding to bf16 adds 1.65e-3
/// relative RMS, to fp16 an eighth of it, independent ones add in quadrature; half as much again for small samples, and
/// five standard deviations for the largest of a million elements. fp64 must agree to 1e-13.
Tolerance derived_tolerance(layouts::DType arithmetic, const Policy& policy, int ranks);

}  // namespace ringlab::experiments
