#pragma once

#include "experiments/backend.hpp"

namespace ringlab::experiments {

/// Ranks on NVIDIA GPUs, for rings of `ranks`. Throws Error if the program was built without CUDA, if there is no GPU,
/// or if the configuration asks for what GPUs cannot do.
std::unique_ptr<Backend> make_cuda_backend(const Config& config, int ranks);

}  // namespace ringlab::experiments
