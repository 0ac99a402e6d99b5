#include "experiments/execution/gpu_probe.hpp"
#include "layouts/basics/require.hpp"

namespace ringlab::experiments {

std::unique_ptr<GpuProbe> make_gpu_probe(const std::string&) {
    fail(
        "--backend cuda: this program was built without CUDA; configure with -DRINGLAB_CUDA=ON (preset gpu) and build "
        "again");
}

}  // namespace ringlab::experiments
