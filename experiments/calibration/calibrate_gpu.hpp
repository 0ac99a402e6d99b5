#pragma once

#include "experiments/config/config.hpp"
#include "experiments/execution/gpu_probe.hpp"

namespace ringlab::experiments {

/// What calibrate_gpu() writes beside the machine file, by the ends of their names.
inline constexpr const char* samples_ending = "_samples.h5";
inline constexpr const char* nccl_ending = "_nccl.toml";
std::filesystem::path beside(const std::string& machine_file, const std::string& ending);

/// Measures GPUs, or without a probe reads what --measured names; fits the simulator's costs; writes the machine file
/// and, beside it, what was measured and, where NCCL is there too, the machine file of its transport. Returns the exit
/// status.
int calibrate_gpu(const Config& config, GpuProbe* probe, const Provenance& provenance);

}  // namespace ringlab::experiments
