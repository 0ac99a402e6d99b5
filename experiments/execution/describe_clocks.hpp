#pragma once

#include "experiments/record/run_writer.hpp"
#include "gpu/device/nvml.hpp"

#include <vector>

namespace ringlab::experiments {

/// Clocks, power and temperature of GPUs over time, in the group "measured/clocks"; nothing if there are no samples.
void describe_clocks(RunWriter& run, std::vector<gpu::ClockSample> samples);

}  // namespace ringlab::experiments
