#include "sim/play/shared_resources.hpp"

#include "layouts/basics/require.hpp"

#include <cmath>

namespace ringlab::sim {

SharedResources::SharedResources(Engine& engine, const Schedule& schedule, const Machine& machine,
                                 const CostModel& cost, const Fold& fold)
    : engine_(engine),
      machine_(machine),
      cost_(cost),
      fold_(fold),
      kernels_(machine.inside_host.uses_kernels() || machine.between_hosts.uses_kernels()),
      one_channel_(schedule.channels().size() == 1) {
    const auto ranks = static_cast<std::size_t>(fold.played());
    const bool memory = std::isfinite(machine_.memory_bytes_per_second) && !cost.is_free(Cause::memory);
    const bool links = !one_channel_ && std::isfinite(machine_.inside_host.link_bytes_per_second);
    const std::size_t ends_of_hosts = 2 * (ranks / static_cast<std::size_t>(machine_.gpus_per_host) + 1);
    engine_.reserve_resources(ranks * (memory + kernels_ + 2 * links) + ends_of_hosts);
    gpus_.resize(ranks);
    for (auto& gpu : gpus_) {
        if (memory) gpu.memory = engine_.add_resource(machine_.memory_bytes_per_second);
        if (kernels_) gpu.sms = engine_.add_resource(machine_.sms);
    }
    add_ports();
}

void SharedResources::add_ports() {
    if (!std::isfinite(machine_.between_hosts.link_bytes_per_second)) return;
    const auto hosts = static_cast<std::size_t>(cost_.topology().hosts());
    const auto ports = static_cast<std::size_t>(machine_.nics_per_host);
    if (hosts == 1) return;
    ports_.resize(hosts * ports);
    if (machine_.network.hosts_per_leaf > 0) leaves_.resize(hosts * ports);  // at least as many as there are leaves
    for (const auto rank : cost_.draws().slow_links())  // the port is slow also for others that share it
        make_if_missing(port_of(rank).out,
                        machine_.between_hosts.link_bytes_per_second / cost_.draws().link_factor(rank));
}

/// Makes the resource at its first use, unless its capacity is infinite.
ResourceId SharedResources::make_if_missing(ResourceId& resource, double capacity) {
    if (resource == none && std::isfinite(capacity)) resource = engine_.add_resource(capacity);
    return resource;
}

SharedResources::Demands SharedResources::of_compute(int rank, bool attends, double parts) const {
    Demands demands;
    const auto& gpu = gpu_of(rank);
    demands.add(gpu.memory, attends ? machine_.attention_memory_bytes_per_second : machine_.memory_bytes_per_second);
    if (attends) demands.add(gpu.sms, parts * machine_.sms);
    return demands;
}

/// Whether a message has its links to itself. If all messages are sent on one channel, they follow each other. Then
/// each has its sender's outgoing and its receiver's incoming link alone, unless GPUs share a port. This does not hold
/// for fetches, because several ranks may fetch from one rank at a time.
bool SharedResources::has_link_alone(int id, int source, Route route) {
    if (!one_channel_) return false;
    (id == source ? sends_ : fetches_) = true;
    require(!(sends_ && fetches_), "rank {} sends and others fetch on the only channel; give each one of its own", id);
    return id == source && (route == Route::inside_host || machine_.nics_per_host == machine_.gpus_per_host);
}

SharedResources::Demands SharedResources::of_transfer(int source, int destination, const TransferCost& cost, int id) {
    auto &from = gpu_of(source), &to = gpu_of(destination);
    Demands demands;
    const auto rate = cost.bytes_per_second;
    const auto capacity = cost.link->link_bytes_per_second;
    if (has_link_alone(id, source, cost.route)) {
        // Such a link is never too small.
    } else if (cost.route == Route::inside_host) {
        demands.add(make_if_missing(from.egress, capacity / cost_.draws().link_factor(source)), rate);
        demands.add(make_if_missing(to.ingress, capacity), rate);
    } else if (!ports_.empty()) {
        demands.add(make_if_missing(port_of(source).out, capacity), rate);
        demands.add(make_if_missing(port_of(destination).in, capacity), rate);
    }
    if (cost.route == Route::spine && !leaves_.empty()) {
        const auto uplinks = machine_.leaf_bytes_per_second();
        demands.add(make_if_missing(leaf_of(source).out, uplinks), rate);
        demands.add(make_if_missing(leaf_of(destination).in, uplinks), rate);
    }
    demands.add(from.memory, rate * cost.link->send_memory_ratio);
    demands.add(to.memory, rate * cost.link->receive_memory_ratio);
    return demands;
}

}  // namespace ringlab::sim
