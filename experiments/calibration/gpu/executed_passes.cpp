#include "experiments/calibration/gpu/executed_passes.hpp"

#include "experiments/calibration/gpu/gpu_measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ringlab::experiments {

using layouts::compute_lane;
using layouts::Pass;

std::vector<ExecutedOperation> ExecutedPass::computing() const {
    std::vector<ExecutedOperation> found;
    for (const auto& one : operations)
        if (one.op.lane() == compute_lane) found.push_back(one);
    std::ranges::sort(found, {}, &ExecutedOperation::begin);
    return found;
}

bool ExecutedPass::transfers_between(double begin, double end) const {
    return std::any_of(operations.begin(), operations.end(), [&](const ExecutedOperation& one) {
        return one.op.transfers() && one.begin < end && one.begin + one.seconds > begin;
    });
}

ExecutedPass::Issued ExecutedPass::issued(int rank) const {
    Issued found;
    for (const auto& one : operations) {
        if (one.rank != rank) continue;
        found.transfers += one.op.transfers();
        found.launches += !one.op.transfers() && !one.op.fused;
    }
    return found;
}

std::vector<ExecutedPass> executed_passes(const GpuSamples& all) {
    std::vector<ExecutedPass> passes;
    std::map<std::string, std::shared_ptr<const Plan>> plans;
    std::vector<layouts::Op> ops;  // of the rank that is being read
    for (const auto& sample : all.samples) {
        if (sample.kind == "pass") {
            auto& plan = plans[fmt::format("{} {} {} {} {}", sample.mask, sample.layout, sample.algorithm, sample.ranks,
                                           sample.tokens_per_rank)];
            if (!plan) plan = plan_of(sample, all);
            auto& pass = passes.emplace_back();
            pass.plan = plan;
            pass.pass = sample.call == "forward" ? Pass::forward : Pass::backward;
            pass.transport = sample.transport;
            pass.seconds = sample.seconds;
        }
        if (passes.empty()) continue;
        auto& pass = passes.back();
        if (sample.kind == "issue") pass.issue = sample.seconds;
        if (sample.kind != "operation") continue;
        if (sample.op == 0) {
            ops.clear();
            auto stream = pass.plan->schedule(pass.pass)->ops(sample.rank);
            while (const auto* op = stream.next()) ops.push_back(*op);
        }
        pass.operations.push_back(
            {ops.at(static_cast<std::size_t>(sample.op)), sample.rank, sample.posted, sample.begin, sample.seconds});
    }
    return passes;
}

}  // namespace ringlab::experiments
