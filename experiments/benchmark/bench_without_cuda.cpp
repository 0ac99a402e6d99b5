#include "experiments/benchmark/bench.hpp"

namespace ringlab::experiments {

const RingBenchRegistration registered_cuda_rings("cuda", "GPUs, one for each rank", {{"copy", "nccl"}, make_bench});

std::unique_ptr<Bench> make_bench(const Config&) {
    fail("it times GPUs, and this program was built without CUDA; build the preset gpu, as in cmake --preset gpu");
}

}  // namespace ringlab::experiments
