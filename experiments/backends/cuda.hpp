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
std::unique_ptr<Backend> make_cuda_backend(const Config& config, const CudaOptions& asked, int ranks);

/// Devices, driver and versions of CUDA and NCCL. Only in a program built with CUDA.
void add_cuda_provenance(Provenance& provenance);

}  // namespace ringlab::experiments
