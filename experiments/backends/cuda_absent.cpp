#include "experiments/backends/cuda.hpp"

namespace ringlab::experiments {
namespace {

[[noreturn]] void fail_without_cuda() {
    fail(
        "--backend cuda: this program was built without CUDA; configure with -DRINGLAB_CUDA=ON (preset gpu) and build "
        "again");
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const ExecutionConfig&, const std::string&, const CudaOptions&, int) {
    fail_without_cuda();
}

std::unique_ptr<Bench> make_cuda_bench(const ExecutionConfig&, const TimingConfig&, const std::vector<int>&) {
    fail("it times GPUs, and this program was built without CUDA; build the preset gpu, as in cmake --preset gpu");
}

std::unique_ptr<GpuProbe> make_cuda_probe(const std::string&) { fail_without_cuda(); }

}  // namespace ringlab::experiments
