#include "experiments/planning/advice_play.hpp"

#include "experiments/planning/one_rank.hpp"
#include "layouts/work.hpp"
#include "sim/kernels.hpp"
#include "sim/simulate.hpp"

#include <algorithm>
#include <set>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using layouts::Schedule;

/// Ranks among which the slowest is likely: the ends, the middle, those on both sides of a host's end.
std::set<int> likely_slowest(const sim::Machine& machine, int ranks) {
    std::set<int> some{0, ranks / 2, ranks - 1};
    if (ranks > machine.gpus_per_host) some.insert({machine.gpus_per_host - 1, machine.gpus_per_host});
    return some;
}

void add_losses(Losses& losses, const Schedule& schedule, const sim::Machine& machine, double seconds, double compute,
                const OneRank& busiest) {
    const auto& problem = schedule.problem();
    const auto forward = schedule.options().pass == Pass::forward;
    const auto rate = sim::attention_cost(machine, schedule).flops;
    const layouts::Run all{0, 1, problem.tokens};
    const auto pairs =
        static_cast<double>(layouts::visible_pairs(schedule.mask(), {&all, 1}, layouts::KeyCounter({&all, 1})));
    const auto mean = pairs * static_cast<double>(problem.batch * problem.query_heads) / schedule.ranks() *
                      (forward ? problem.forward_flop_per_cell() : problem.backward_flop_per_cell());
    const auto exposed = std::max(0.0, seconds - compute);
    // Where the host is never ahead, what looks like waiting for transfers is waiting for it.
    const bool host_bound = busiest.issue >= 0.9 * seconds;
    (host_bound ? losses.launch : losses.transfer) += exposed;
    losses.imbalance += std::max(0.0, busiest.flop - mean) / rate;
    losses.launch += busiest.launches;
    losses.tail += std::max(0.0, compute - busiest.launches - std::max(busiest.flop, mean) / rate);
}

}  // namespace

Played play_some_ranks(const Advised& one, const Plan& plan, sim::ComputeModel model) {
    sim::SimOptions options;
    options.compute = model;
    const auto& machine = one.machine->machine;
    Played played;
    for (std::size_t pass = 0; pass < advised_passes.size(); ++pass) {
        const auto& schedule = *plan.schedule(advised_passes[pass]);
        OneRank slowest, busiest;
        for (const auto rank : likely_slowest(machine, schedule.ranks())) {
            const auto found = play_one_rank(schedule, machine, options, rank);
            played.looked_at += found.operations;
            if (found.seconds > slowest.seconds) slowest = found;
            if (found.compute >= busiest.compute) busiest = found;
        }
        played.seconds[pass] = slowest.seconds;
        played.operations += slowest.operations * schedule.ranks();
        played.operations_of_rank += slowest.operations;
        add_losses(played.losses, schedule, machine, slowest.seconds, busiest.compute, busiest);
    }
    return played;
}

Played play_all_ranks(const Advised& one, const Plan& plan, int rings) {
    Played played;
    const auto& machine = one.machine->machine;
    for (std::size_t pass = 0; pass < advised_passes.size(); ++pass) {
        const auto& schedule = *plan.schedule(advised_passes[pass]);
        sim::SimOptions options;
        options.replicas = rings;
        const auto predicted = sim::simulate(schedule, machine, options);
        int busiest = 0;
        for (int rank = 0; rank < schedule.ranks(); ++rank)
            if (predicted.ranks[static_cast<std::size_t>(rank)].compute >
                predicted.ranks[static_cast<std::size_t>(busiest)].compute)
                busiest = rank;
        played.seconds[pass] = layouts::to_seconds(predicted.makespan);
        add_losses(played.losses, schedule, machine, played.seconds[pass],
                   layouts::to_seconds(predicted.ranks[static_cast<std::size_t>(busiest)].compute),
                   play_one_rank(schedule, machine, {}, busiest));
    }
    return played;
}

std::int64_t operations_of(const Plan& plan) {
    std::int64_t most = 0;
    const int ranks = plan.layout().ranks();
    for (const int rank : std::set{0, ranks / 2, ranks - 1}) {  // one that sees nothing may have none
        std::int64_t count = 0;
        for (const auto pass : advised_passes) {
            auto ops = plan.schedule(pass)->ops(rank);
            while (ops.next()) ++count;
        }
        most = std::max(most, count);
    }
    return most * ranks;
}

}  // namespace ringlab::experiments
