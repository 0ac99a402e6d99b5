#pragma once

#include "gpu/team/team.hpp"
#include "layouts/basics/ring_group.hpp"

#include <array>
#include <climits>
#include <vector>

namespace ringlab::gpu {

/// A host's name with zeros behind it.
using HostName = std::array<char, HOST_NAME_MAX + 20>;

/// The name of this process's host, and a number that two hosts of the same name, or containers of one host in which
/// processes cannot open each other's memory, do not share: "node7:5f3a9c2144d0e1b8". Throws Error if the name is not
/// to be had.
HostName host_name();

/// Which ranks share a host, by global rank. A rank is the member of the team with the same number.
class RankHosts {
public:
    RankHosts() = default;  ///< all ranks share one

    /// `first_ranks`: for each rank, the first rank of its host.
    explicit RankHosts(std::vector<int> first_ranks) : first_ranks_(std::move(first_ranks)) {}

    /// Each rank has a host of its own.
    static RankHosts apart(int ranks);

    /// Ranks share a host if their processes name the same one. The environment variable RINGLAB_RANKS_PER_HOST
    /// pretends that so many consecutive ranks have a host of their own, so that rings over hosts can be tried on one.
    /// Where members are processes, all of them call it at the same time. Throws Error, the same on all of them, where
    /// they were given different values of the variable.
    static RankHosts of_team(Team& team, Clock::duration timeout);

    bool share(int one, int other) const { return first_rank_beside(one) == first_rank_beside(other); }
    int first_rank_beside(int rank) const {
        return first_ranks_.empty() ? 0 : first_ranks_.at(static_cast<std::size_t>(rank));
    }
    /// Whether any ring of the group has ranks on several hosts.
    bool split_a_ring(const layouts::RingGroup& group) const;

private:
    std::vector<int> first_ranks_;  // empty: all share one
};

/// The value of RINGLAB_RANKS_PER_HOST; 0: hosts are not pretended. Throws Error if it is no positive number.
int pretended_ranks_per_host();

}  // namespace ringlab::gpu
