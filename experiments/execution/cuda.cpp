#include "experiments/execution/cuda.hpp"

#include <cstdlib>

namespace ringlab::experiments {
namespace {

class CudaKind : public BackendKind {
public:
    void add_options(Options& options) override {
        options
            .add("transport", &asked_.transport, "NAME",
                 "copy (copy engines, one host), nccl, mixed (copy engines inside a host, NCCL between hosts), or "
                 "loopback (ranks take turns on the GPUs there are). auto: copy with a GPU per rank, mixed on several "
                 "hosts, else loopback")
            .one_of({"auto", "copy", "nccl", "mixed", "loopback"});
        options
            .add("kernels", &asked_.kernels, "NAME",
                 "portable (sm_80 and later), hopper (sm_90a; portable where it has none for a pass or head dim), or "
                 "auto, the fastest that runs")
            .one_of({"auto", "portable", "hopper"});
    }

    /// Loading a kernel at its first launch can wait for all work of its device, which may be waiting for another GPU.
    void prepare() const override { setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

    std::unique_ptr<Backend> open(const ExecutionConfig& config, const BackendUse& use) const override {
        return open_cuda(config, use, asked_);
    }

    std::vector<std::string> transports() const override { return {"copy", "nccl", "mixed"}; }

private:
    CudaOptions asked_;
};

const BackendRegistration registered_cuda("cuda", "NVIDIA GPUs, on which ranks may take turns; bf16 and fp16",
                                          [] { return std::make_shared<CudaKind>(); });

}  // namespace
}  // namespace ringlab::experiments
