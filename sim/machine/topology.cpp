#include "sim/machine/topology.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <set>

namespace ringlab::sim {

Topology::Topology(int ranks, const Machine& machine, const SimOptions& options)
    : machine_(machine), placement_(options.placement) {
    require(ranks <= machine.gpus(), "{} ranks on machine '{}' of {} hosts with {} GPUs each; give it more hosts",
            ranks, machine.name, machine.hosts, machine.gpus_per_host);
    require(placement_.empty() || static_cast<int>(placement_.size()) == ranks,
            "{} placed GPUs for {} ranks; give one each, or none", placement_.size(), ranks);
    std::set<int> taken;
    for (const auto gpu : placement_)
        require(gpu >= 0 && gpu < machine.gpus() && taken.insert(gpu).second,
                "GPU {} in the placement; GPUs are numbered 0 to {} and take one rank each", gpu, machine.gpus() - 1);
    hosts_.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        hosts_.push_back(gpu(rank) / machine.gpus_per_host);
        hosts_in_use_ = std::max(hosts_in_use_, hosts_.back() + 1);
    }
}

int Topology::port(int rank) const {
    const auto gpus_per_port = machine_.gpus_per_host / machine_.nics_per_host;
    return host(rank) * machine_.nics_per_host + gpu(rank) % machine_.gpus_per_host / gpus_per_port;
}

int Topology::leaf(int rank) const {
    const auto& network = machine_.network;
    if (network.hosts_per_leaf == 0) return 0;
    const auto group = host(rank) / network.hosts_per_leaf;
    if (network.leaves == Network::Leaves::hosts) return group;
    return group * machine_.nics_per_host + port(rank) % machine_.nics_per_host;
}

}  // namespace ringlab::sim
