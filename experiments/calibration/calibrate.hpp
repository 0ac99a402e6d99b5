#pragma once

#include "experiments/calibration/fit_gpu.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/options/config.hpp"

#include <filesystem>
#include <functional>
#include <string>

namespace ringlab::experiments {

/// Endings of the names of the files that calibrate_gpu() writes beside the machine file.
inline constexpr const char* samples_ending = "_samples.h5";
inline constexpr const char* nccl_ending = "_nccl.toml";
std::filesystem::path beside(const std::string& machine_file, const std::string& ending);

/// Calibrates the CPU backend: processor time of single operations, of passes of one rank and of ranks that take turns,
/// and messages between ranks that compute nothing. Writes the machine file and prints a table.
void calibrate_cpu(const Config& config);

/// Measures GPUs or, without a backend, reads what --measured names. Fits the costs of the simulator and writes the
/// machine file. Writes beside it the samples and, if there is NCCL, the machine file for NCCL.
void calibrate_gpu(const Config& config, Backend* gpus, const Provenance& provenance);

/// Times parts of passes on GPUs: single attends and what surrounds them, whole passes of one rank and of ranks that
/// take turns on one GPU, attends that never rest, messages between GPUs that compute next to nothing, and messages
/// beside attends. `keep` is called whenever there is more, so that little is lost if it ends early.
GpuSamples measure_gpus(const ProblemConfig& problem, const SweepConfig& sweep, Backend& gpus,
                        const std::function<void(const GpuSamples&)>& keep);

/// Writes a calibrated machine file. Returns its path, see FileGuard::write(). If no prediction could be made with the
/// file, or if a memory ratio is 0, it writes nothing and throws Error. This happens on a computer that is busy with
/// other work, where some operations can seem to take no time.
std::filesystem::path write_machine_file(const FileGuard& files, const std::filesystem::path& output,
                                         const std::string& text);

/// Throws Error if a memory ratio was fitted or measured as 0: whatever moves bytes takes longer if they are more.
void require_memory_ratios(const sim::Machine& machine);

/// Writes and announces the machine file of a fit, and prints how well attends are fitted. The heading of the file:
/// `whose`, that, and `more`.
void write_fit(const Config& config, const std::filesystem::path& path, const FittedMachine& fitted,
               const std::string& whose, const std::string& more, bool prints_table);

}  // namespace ringlab::experiments
