#pragma once

#include "experiments/execution/backend.hpp"

namespace ringlab::experiments {

/// The options that only this backend has.
struct CudaOptions {
    std::string transport = "auto";
    std::string kernels = "auto";
};

/// Ranks on NVIDIA GPUs, for rings of `ranks`. Throws Error if the program was built without CUDA, if there is no GPU,
/// or if the configuration asks for what GPUs cannot do.
std::unique_ptr<Backend> make_cuda_backend(const ExecutionConfig& config, const std::string& arithmetic,
                                           const CudaOptions& asked, int ranks);

/// Times rings on GPUs. Throws Error as above, and if there are fewer GPUs than the largest of `ranks`.
std::unique_ptr<Bench> make_cuda_bench(const ExecutionConfig& config, const TimingConfig& timing,
                                       const std::vector<int>& ranks);

/// Measures parts of a pass on the first GPU or on all GPUs, with a family of kernels by name.
std::unique_ptr<GpuProbe> make_cuda_probe(const std::string& kernels);

/// Devices, driver and versions of CUDA and NCCL. Only in a program built with CUDA.
void add_cuda_provenance(Provenance& provenance);

/// Of runs with rings over the transport `mixed`, the only one for which it matters which ranks share a host: how many
/// ranks count as a host, if that is pretended.
void add_pretended_hosts(Provenance& provenance);

}  // namespace ringlab::experiments
