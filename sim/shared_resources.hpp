#pragma once

#include "sim/cost.hpp"
#include "sim/engine.hpp"
#include "sim/fold.hpp"

#include <array>
#include <vector>

namespace ringlab::sim {

/// What ranks share on a machine, as resources of the engine: memory and multiprocessors of every GPU; links, network
/// ports and leaf switches when something first travels over them, since of a ring only the hosts' ends are joined to
/// others.
class SharedResources {
public:
    /// What one operation asks for.
    struct Demands {
        std::array<Demand, Engine::most_demands> all;
        std::size_t count = 0;

        void add(ResourceId resource, double amount) {
            if (resource != none && amount > 0) all[count++] = {resource, amount};
        }
        std::span<const Demand> span() const { return {all.data(), count}; }
    };

    SharedResources(Engine& engine, const Schedule& schedule, const Machine& machine, const CostModel& cost,
                    const Fold& fold);

    /// Of something on the compute lane; an attend wants multiprocessors in so many parts.
    Demands of_compute(int rank, bool attends, double parts = 1) const;

    /// Of a message, which `id`, its source or its destination, sends or fetches.
    Demands of_transfer(int source, int destination, const TransferCost& cost, int id);

    /// Whether transfers take multiprocessors.
    bool kernels() const { return kernels_; }
    void leave_to_compute(int rank, double multiprocessors) {
        engine_.set_capacity(gpu_of(rank).multiprocessors, multiprocessors);
    }

private:
    static constexpr ResourceId none = ~0u;

    /// What one rank's GPU brings, or none where it never limits anything.
    struct Gpu {
        ResourceId egress = none, ingress = none, memory = none, multiprocessors = none;
    };

    /// What a port sends and receives, or a leaf to and from the spine.
    struct TwoWays {
        ResourceId out = none, in = none;
    };
    Gpu& gpu_of(int rank) { return gpus_[static_cast<std::size_t>(fold_.of(rank))]; }
    const Gpu& gpu_of(int rank) const { return gpus_[static_cast<std::size_t>(fold_.of(rank))]; }
    TwoWays& port_of(int rank) { return ports_[static_cast<std::size_t>(cost_.topology().port(fold_.of(rank)))]; }
    TwoWays& leaf_of(int rank) { return leaves_[static_cast<std::size_t>(cost_.topology().leaf(fold_.of(rank)))]; }

    void add_ports();
    ResourceId made(ResourceId& resource, double capacity);
    bool has_link_alone(int id, int source, Route route);

    Engine& engine_;
    const Machine& machine_;
    const CostModel& cost_;
    const Fold& fold_;
    bool kernels_, one_channel_, sends_ = false, fetches_ = false;
    std::vector<Gpu> gpus_;                // by rank that is played
    std::vector<TwoWays> ports_, leaves_;  // empty where they never limit anything
};

}  // namespace ringlab::sim
