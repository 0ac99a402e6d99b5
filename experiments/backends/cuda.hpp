#pragma once

#include "experiments/execution/backend.hpp"

namespace ringlab::experiments {

/// What this backend alone can be asked for.
struct CudaOptions {
    std::string transport = "auto";
    std::string kernels = "auto";
    bool check_finite = false;
};

/// Ranks on NVIDIA GPUs, for rings of `ranks`. Throws Error if the program was built without CUDA, if there is no GPU,
/// or if the configuration asks for what GPUs cannot do.
std::unique_ptr<Backend> make_cuda_backend(const ExecutionConfig& config, const std::string& arithmetic,
                                           const CudaOptions& asked, int ranks);

/// What times them. Throws Error also where there are fewer GPUs than the most ranks.
std::unique_ptr<Bench> make_cuda_bench(const ExecutionConfig& config, const TimingConfig& timing,
                                       const std::vector<int>& ranks);

/// What measures parts of a pass on the first GPU, or all of them, with a family of kernels by name.
std::unique_ptr<GpuProbe> make_cuda_probe(const std::string& kernels);

/// Devices, driver and versions of CUDA and NCCL. Only in a program built with CUDA.
void add_cuda_provenance(Provenance& provenance);

}  // namespace ringlab::experiments
