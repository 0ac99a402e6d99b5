#pragma once

#include "experiments/calibration/gpu/gpu_fit.hpp"

namespace ringlab::experiments {

/// Fits the power of each GPU relative to the first: where power limits clocks, time goes as its cube root.
void fit_power(FittedMachine& fitted, const GpuSamples& samples);

/// Fits rotary embedding, split-KV attends, dropout and matrix products, as far as the samples hold them.
void fit_rotation(FittedMachine& fitted, const GpuSamples& samples);
void fit_split_kv(FittedMachine& fitted, const GpuSamples& samples);
void fit_dropout(FittedMachine& fitted, const GpuSamples& samples);
void fit_products(FittedMachine& fitted, const GpuSamples& samples);

}  // namespace ringlab::experiments
