#include "experiments/calibration/gpu/executed_passes.hpp"

#include "experiments/calibration/fit/timed_attends.hpp"
#include "experiments/calibration/gpu/gpu_measure.hpp"
#include "experiments/prediction/predictor.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/clocks.hpp"
#include "sim/play/simulate.hpp"
#include "sim/tiles/kernels.hpp"

#include <fmt/format.h>

#include <map>

namespace ringlab::experiments {

using layouts::Pass;

namespace {

/// The clock that power allows a GPU that computes for so long within a pass, at the clock of the calibration.
double clock_of(layouts::Picoseconds computing, layouts::Picoseconds pass, double flop, const sim::AttentionCost& cost,
                const sim::SimOptions& options) {
    sim::Prediction turns;
    turns.ranks.emplace_back().compute = computing;
    turns.makespan = pass;
    const double at_calibration = 1;
    return sim::clocks_within_power(turns, {&at_calibration, 1}, {&flop, 1}, {&cost.power_flops, 1}, options).front();
}

}  // namespace

ExecutedPass::Issued ExecutedPass::issued(int rank) const {
    Issued found;
    for (const auto& one : operations) {
        if (one.rank != rank) continue;
        found.transfers += one.op.transfers();
        found.launches += !one.op.transfers() && !one.op.fused;
    }
    return found;
}

double seconds_in_turn(const ExecutedPass& pass, const sim::Machine& machine) {
    const auto& schedule = *pass.plan->schedule(pass.pass);
    auto apart = machine;  // each rank has a GPU to itself, and no message costs anything
    apart.gpus_per_host = apart.nics_per_host = pass.ranks();
    apart.power_of_gpus.clear();
    apart.inside_host = {};
    sim::SimOptions options;
    options.clock = sim::Clock::calibrated;
    const auto found = sim::simulate(schedule, apart, options);
    sim::CostModel cost(schedule, apart, options);
    layouts::Picoseconds computing = 0, around = 0;
    double flop = 0;
    for (int rank = 0; rank < pass.ranks(); ++rank) {
        computing += found.ranks[static_cast<std::size_t>(rank)].compute;
        around += cost.begin_of_pass(rank) + cost.end_of_pass(rank);
    }
    for (const auto& one : pass.operations)
        if (one.op.kind == layouts::OpKind::attend) flop += cost.computed_flop(one.op);
    repeat(options, {pass.period, pass.seconds, pass.forward_before});
    const auto clock = clock_of(computing, computing + around, flop, attention_cost(machine, schedule), options);
    return layouts::to_seconds(around) + layouts::to_seconds(computing) / clock;
}

Timing timing_without_rests(const GpuSample& sample, std::shared_ptr<const Plan> plan, const sim::Machine& machine) {
    const auto found = sampled_attend(sample, std::move(plan)).value();
    return {sample.seconds, [found, &machine] {
                const auto& schedule = *found.attend.plan->schedule(found.pass);
                const sim::SimOptions options;
                auto ops = schedule.ops(0);
                const auto flop = sim::CostModel(schedule, machine, options).computed_flop(*ops.next());
                const auto alone = predicted_seconds(found.attend, found.pass, machine);
                const auto time = layouts::checked_picoseconds(alone);
                return alone / clock_of(time, time, flop, attention_cost(machine, schedule), options);
            }};
}

std::vector<ExecutedPass> executed_passes(const GpuSamples& all) {
    std::vector<ExecutedPass> passes;
    std::map<std::string, std::shared_ptr<const Plan>> plans;
    std::vector<layouts::Op> ops;  // of the rank that is being read
    for (const auto& sample : all.samples) {
        if (sample.kind == "pass") {
            const auto before = passes.empty() ? 0 : passes.back().seconds;
            auto& plan = plans[fmt::format("{} {} {} {} {}", sample.mask, sample.layout, sample.algorithm, sample.ranks,
                                           sample.tokens_per_rank)];
            if (!plan) plan = plan_of(sample, all);
            auto& pass = passes.emplace_back();
            pass.plan = plan;
            pass.pass = sample.call == "forward" ? Pass::forward : Pass::backward;
            pass.transport = sample.transport;
            pass.seconds = sample.seconds;
            pass.forward_before = pass.pass == Pass::backward ? before : 0;
        }
        if (passes.empty()) continue;
        auto& pass = passes.back();
        if (sample.kind == "period") pass.period = sample.seconds;
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
