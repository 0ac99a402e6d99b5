#pragma once

#include "experiments/calibration/gpu/executed_passes.hpp"
#include "experiments/calibration/gpu/gpu_fit.hpp"

namespace ringlab::experiments {

/// Power of each GPU against the first: where power bounds clocks, time goes as its cube root.
void fit_power(FittedMachine& fitted, const GpuSamples& samples);

/// What launches of several attends take longer than their items say, beside what attends one by one do, which power
/// slows down as much.
void fit_joined(FittedMachine& fitted, const std::vector<ExecutedPass>& passes);

/// Rotations, attends of few rows, dropout and matrix products, as far as the samples hold them.
void fit_rotation(FittedMachine& fitted, const GpuSamples& samples);
void fit_few_rows(FittedMachine& fitted, const GpuSamples& samples);
void fit_dropout(FittedMachine& fitted, const GpuSamples& samples);
void fit_products(FittedMachine& fitted, const GpuSamples& samples);

}  // namespace ringlab::experiments
