#include "experiments/benchmark/bench.hpp"

namespace ringlab::experiments {

std::unique_ptr<Bench> make_bench(const Config&) {
    fail("it times GPUs, and this program was built without CUDA; build the preset gpu, as in cmake --preset gpu");
}

}  // namespace ringlab::experiments
