#include "experiments/planning/candidates.hpp"

#include "layouts/basics/require.hpp"
#include "sim/play/fold.hpp"
#include "sim/play/simulate.hpp"

#include <algorithm>
#include <set>

namespace ringlab::experiments {
namespace {

/// The rank with the most FLOP of attends. Rank 0 if the ring is too large to look at all ranks.
int busiest_rank(const Plan& plan) {
    const int ranks = plan.layout().ranks();
    std::pair<double, int> most{0, 0};
    for (int rank = 0; rank < ranks && ranks <= large_ring; ++rank) {
        double flop = 0;
        for (const auto pass : both_passes) {
            const auto& schedule = *plan.schedule(pass);
            auto ops = schedule.ops(rank);
            while (const auto* op = ops.next())
                if (op->kind == layouts::OpKind::attend) flop += schedule.flop(*op);
        }
        most = std::max(most, {flop, rank});
    }
    return most.second;
}

/// Ranks among which the slowest one is likely to be: the first, middle and last one, those on both sides of a host
/// boundary, and the busiest.
std::set<int> likely_slowest(const Advised& one, const Plan& plan) {
    const int ranks = one.setup.ranks;
    const int gpus = one.machine->machine.gpus_per_host;
    std::set<int> some{0, ranks / 2, ranks - 1, busiest_rank(plan)};
    if (ranks > gpus) some.insert({gpus - 1, gpus});
    return some;
}

}  // namespace

Played play_some_ranks(const Advised& one, const Plan& plan, const sim::SimOptions& options) {
    Played played;
    const auto slowest = likely_slowest(one, plan);
    for (std::size_t pass = 0; pass < both_passes.size(); ++pass)
        for (const auto rank : slowest) {
            const auto found =
                sim::play_one_rank(*plan.schedule(both_passes[pass]), one.machine->machine, options, rank);
            played.looked_at += found.operations;
            played.seconds[pass] = std::max(played.seconds[pass], found.seconds);
        }
    return played;
}

Played play_all_ranks(const Advised& one, const Plan& plan, sim::Clock clock) {
    Played played;
    sim::SimOptions options;
    options.clock = clock;
    options.replicas = one.played_rings;
    for (std::size_t pass = 0; pass < both_passes.size(); ++pass)
        played.seconds[pass] = layouts::to_seconds(
            sim::simulate(*plan.schedule(both_passes[pass]), one.machine->machine, options).makespan);
    return played;
}

sim::Breakdown explain_by_some_ranks(const Advised& one, const Plan& plan, sim::Clock clock) {
    const auto time = [&](std::optional<sim::Cause> free) {
        sim::SimOptions options;
        options.clock = clock;
        options.free = free;
        const auto [forward, backward] = play_some_ranks(one, plan, options).seconds;
        return layouts::to_picoseconds(forward + backward);
    };
    sim::Breakdown found{.pass = time({})};
    for (std::size_t i = 0; i < sim::causes.size(); ++i) found.saved[i] = found.pass - time(sim::causes[i]);
    return found;
}

sim::Breakdown explain_by_all_ranks(const Advised& one, const Plan& plan, sim::Clock clock) {
    sim::Breakdown both;
    sim::SimOptions options;
    options.clock = clock;
    options.replicas = one.played_rings;
    options.trace = true;
    for (const auto pass : both_passes) {
        const auto& schedule = *plan.schedule(pass);
        const auto& machine = one.machine->machine;
        both += sim::break_down(schedule, machine, options, sim::simulate(schedule, machine, options));
    }
    return both;
}

std::int64_t operations_of(const Plan& plan) {
    std::int64_t most = 0;
    const int ranks = plan.layout().ranks();
    for (const int rank : std::set{0, ranks / 2, ranks - 1}) {  // a rank that sees nothing may have no operations
        std::int64_t count = 0;
        for (const auto pass : both_passes) {
            auto ops = plan.schedule(pass)->ops(rank);
            while (ops.next()) ++count;
        }
        most = std::max(most, count);
    }
    return most * ranks;
}

}  // namespace ringlab::experiments
