#pragma once

#include "experiments/calibration/gpu_probe.hpp"
#include "experiments/console/config.hpp"

namespace ringlab::experiments {

/// Measures GPUs, fits the simulator's costs and writes the machine file. Returns the exit status.
int calibrate_gpu(const Config& config, GpuProbe& probe);

}  // namespace ringlab::experiments
