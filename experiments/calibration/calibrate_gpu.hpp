#pragma once

#include "experiments/execution/gpu_probe.hpp"
#include "experiments/options/config.hpp"

namespace ringlab::experiments {

/// Endings of the names of the files that calibrate_gpu() writes beside the machine file.
inline constexpr const char* samples_ending = "_samples.h5";
inline constexpr const char* nccl_ending = "_nccl.toml";
std::filesystem::path beside(const std::string& machine_file, const std::string& ending);

/// Measures GPUs or, without a probe, reads what --measured names. Fits the costs of the simulator and writes the
/// machine file. Writes beside it the samples and, if there is NCCL, the machine file for NCCL. Returns the exit
/// status.
int calibrate_gpu(const Config& config, GpuProbe* probe, const Provenance& provenance);

}  // namespace ringlab::experiments
