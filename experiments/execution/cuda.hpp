#pragma once

#include "experiments/execution/backend.hpp"

namespace ringlab::experiments {

/// The options that only this backend has.
struct CudaOptions {
    std::string transport = "auto";
    std::string kernels = "auto";
};

/// NVIDIA GPUs. Throws Error if the program was built without CUDA, if there is no GPU, if there are fewer than ranks
/// that need one each, or if the configuration asks for what GPUs cannot do.
std::unique_ptr<Backend> open_cuda(const ExecutionConfig& config, const BackendUse& use, const CudaOptions& asked);

}  // namespace ringlab::experiments
