#include "experiments/execution/cuda.hpp"
#include "layouts/basics/require.hpp"

namespace ringlab::experiments {

std::unique_ptr<Backend> open_cuda(const ExecutionConfig&, const BackendUse&, const CudaOptions&) {
    fail(
        "--backend cuda: this program was built without CUDA; configure with -DRINGLAB_CUDA=ON (preset gpu) and build "
        "again");
}

}  // namespace ringlab::experiments
