#pragma once

#include "sim/cost/cost.hpp"
#include "sim/engine/engine.hpp"
#include "sim/play/fold.hpp"

#include <array>
#include <vector>

namespace ringlab::sim {

/// What ranks share, as resources of the engine. Memory and SMs of every GPU are made at once. Links, network ports and
/// leaf switches are made when a message first uses them, because in a ring only the ends of hosts use ports.
class SharedResources {
public:
    /// What one operation demands of resources.
    struct Demands {
        std::array<Demand, Sharing::most_demands> all;
        std::size_t count = 0;

        void add(ResourceId resource, double amount) {
            if (resource != none && amount > 0) all[count++] = {resource, amount};
        }
        std::span<const Demand> span() const { return {all.data(), count}; }
    };

    SharedResources(Engine& engine, const Schedule& schedule, const Machine& machine, const CostModel& cost,
                    const Fold& fold);

    /// Demands of an operation on the compute lane. An attend demands SMs in units of 1 / `parts`.
    Demands of_compute(int rank, bool attends, double parts = 1) const;

    /// Demands of a message. `id` is the rank whose operation it is: its source if it is sent, its destination if it is
    /// fetched.
    Demands of_transfer(int source, int destination, const TransferCost& cost, int id);

    bool transfers_are_kernels() const { return kernels_; }
    void leave_to_compute(int rank, double sms) { engine_.set_capacity(gpu_of(rank).sms, sms); }

private:
    static constexpr ResourceId none = ~0u;

    /// Resources of one rank's GPU; `none` for those that never limit anything.
    struct Gpu {
        ResourceId egress = none, ingress = none, memory = none, sms = none;
    };

    /// The two directions of a port, or of a leaf switch to and from the spine.
    struct Directions {
        ResourceId out = none, in = none;
    };
    Gpu& gpu_of(int rank) { return gpus_[static_cast<std::size_t>(fold_.of(rank))]; }
    const Gpu& gpu_of(int rank) const { return gpus_[static_cast<std::size_t>(fold_.of(rank))]; }
    Directions& port_of(int rank) { return ports_[static_cast<std::size_t>(cost_.topology().port(fold_.of(rank)))]; }
    Directions& leaf_of(int rank) { return leaves_[static_cast<std::size_t>(cost_.topology().leaf(fold_.of(rank)))]; }

    void add_ports();
    ResourceId make_if_missing(ResourceId& resource, double capacity);
    bool has_link_alone(int id, int source, Route route);

    Engine& engine_;
    const Machine& machine_;
    const CostModel& cost_;
    const Fold& fold_;
    bool kernels_, one_channel_, sends_ = false, fetches_ = false;
    std::vector<Gpu> gpus_;                   // by simulated rank
    std::vector<Directions> ports_, leaves_;  // empty if they never limit anything
};

}  // namespace ringlab::sim
