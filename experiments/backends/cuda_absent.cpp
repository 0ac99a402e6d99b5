#include "experiments/backends/cuda.hpp"

namespace ringlab::experiments {

std::unique_ptr<Backend> make_cuda_backend(const Config&, const CudaOptions&, int) {
    fail(
        "--backend cuda: this program was built without CUDA; configure with -DRINGLAB_CUDA=ON (preset gpu) and build "
        "again");
}

}  // namespace ringlab::experiments
