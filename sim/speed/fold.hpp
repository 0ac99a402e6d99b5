#pragma once

#include "sim/machine/options.hpp"
#include "sim/machine/topology.hpp"
#include "sim/speed/op_source.hpp"

namespace ringlab::sim {

/// Simulates ranks that must behave alike only once: rank r behaves as rank r % played() does.
///
/// Suppose the schedule is the same on all ranks but for their numbers, and attends cost the same on all of them. Then
/// the times of a rank depend only on its peers and on who shares its memory, links, ports and leaf switches. If hosts
/// are alike and all their GPUs take part, every host has the same neighbours. So the times of one host's ranks,
/// repeated, solve the equations of all hosts, and these have one solution. Where several hosts share a leaf switch,
/// the unit is all hosts of a leaf; where no message leaves its host, it is a single rank.
///
/// Sums over those who share a resource are whole numbers, so their order does not matter. Where a resource is too
/// small for them, shares are rounded in the order of its users. Then one rank does not stand for the others, and the
/// caller has to play all (Engine::has_shared_out()).
class Fold {
public:
    /// Folds nothing if options ask for a trace, or make ranks differ.
    Fold(const OpSource& ops, const Schedule& schedule, const Machine& machine, const Topology& topology,
         const SimOptions& options);

    /// Number of ranks to simulate; all ranks of all rings if nothing is folded.
    int played() const { return played_; }

    int of(int rank) const {
        if (rank < played_) return rank;
        return (played_ & (played_ - 1)) == 0 ? rank & (played_ - 1) : rank % played_;
    }

private:
    int played_;
};

}  // namespace ringlab::sim
