#include "sim/play/fold.hpp"

#include <algorithm>

namespace ringlab::sim {
namespace {

/// Whether the options treat all ranks alike.
bool options_treat_ranks_alike(const SimOptions& options) {
    const auto& jitter = options.jitter;
    return options.placement.empty() && options.start.empty() && jitter.slow_gpus == 0 && jitter.slow_links == 0 &&
           jitter.compute_noise == 0 && jitter.transfer_noise == 0 && jitter.start_skew_seconds == 0;
}

/// Whether equal work gives all GPUs the same clock.
bool equal_work_gives_equal_clocks(const Machine& machine, const SimOptions& options) {
    const auto& powers = machine.power_of_gpus;
    return options.clock == Clock::calibrated ||
           std::all_of(powers.begin(), powers.end(), [&](double power) { return power == powers.front(); });
}

/// Period of the machine: the smallest number of ranks after which everything repeats.
int period(const Schedule& schedule, const Machine& machine, const Topology& topology) {
    if (topology.hosts() == 1 || machine.gpus_per_host % schedule.ranks() == 0) return 1;
    const auto& network = machine.network;
    // If all hosts are on one leaf, no message uses the spine. With rails, messages between different rails use it in
    // any case.
    const bool has_spine = network.hosts_per_leaf > 0 &&
                           (network.leaves == Network::Leaves::rails || topology.hosts() > network.hosts_per_leaf);
    return machine.gpus_per_host * (has_spine ? std::min(network.hosts_per_leaf, topology.hosts()) : 1);
}

}  // namespace

Fold::Fold(const OpSource& ops, const Schedule& schedule, const Machine& machine, const Topology& topology,
           const SimOptions& options)
    : played_(schedule.ranks() * options.replicas) {
    if (!options.fold || options.trace || !equal_work_gives_equal_clocks(machine, options) ||
        options.compute != ComputeModel::rate || !ops.attends_are_alike() || !options_treat_ranks_alike(options) ||
        machine.inside_host.depends_on_more_than_bytes())
        return;
    const auto ranks = period(schedule, machine, topology);
    if (schedule.ranks() % ranks == 0) played_ = ranks;
}

int ranks_played(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    const auto ranks = schedule.ranks() * options.replicas;
    return Fold(OpSource(schedule, ranks), schedule, machine, Topology(ranks, machine, options), options).played();
}

}  // namespace ringlab::sim
