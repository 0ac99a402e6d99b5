#pragma once

#include "sim/op_source.hpp"
#include "sim/options.hpp"
#include "sim/topology.hpp"

namespace ringlab::sim {

/// Ranks that cannot differ, of which one is played for all: rank r goes as rank r % played() does.
///
/// In a schedule whose ranks are alike, and whose attends cost the same on all of them, what a rank does when is told
/// by the times of its peers and by who shares its memory, links, ports and leaf switches. On a machine of like hosts,
/// all of whose GPUs play, the host next to a host has like neighbours in turn: what one host's ranks do solves the
/// equations of all hosts, and they have one solution. Where leaves join several hosts that is true of a leaf's, and
/// where no message leaves its host of each rank.
///
/// Sums over those who share a resource are whole numbers, which no order changes; where a resource has to be shared
/// out, levels are rounded in the order of those who share it. Such a play does not stand for the others.
class Fold {
public:
    /// Nothing is folded where options ask for a trace or draw ranks apart.
    Fold(const OpSource& ops, const Schedule& schedule, const Machine& machine, const Topology& topology,
         const SimOptions& options);

    /// Ranks of all rings, without a fold.
    int played() const { return played_; }

    int of(int rank) const {
        if (rank < played_) return rank;
        return (played_ & (played_ - 1)) == 0 ? rank & (played_ - 1) : rank % played_;
    }

private:
    int played_;
};

}  // namespace ringlab::sim
