#include "experiments/execution/bench.hpp"

namespace ringlab::experiments {
namespace {

[[noreturn]] void fail_without_accelerator() { fail("this backend times only rings; --backend cuda times devices"); }

}  // namespace

std::int64_t gradient_bytes(const Plan& plan, int rank) {
    const auto& p = plan.problem;
    const auto row = p.query_heads * p.head_dim + p.kv_heads * (p.head_dim + p.value_dim);
    return p.batch * plan.layout().shard_tokens(rank) * row * layouts::bytes_of(p.dtype);
}

DeviceSamples Bench::device(const Plan&, const std::string&) { fail_without_accelerator(); }
MemoryTrial Bench::trial(const Plan&, std::int64_t) { fail_without_accelerator(); }
CeilingSamples Bench::ceilings(int) { fail_without_accelerator(); }

MemoryTrial trial_unless_full(const std::function<MemoryTrial()>& run) {
    try {
        return run();
    } catch (const NoMemory& error) {
        MemoryTrial trial;
        trial.why_not = error.what();
        return trial;
    }
}

}  // namespace ringlab::experiments
