#pragma once

#include "layouts/basics/require.hpp"

namespace ringlab::layouts {

/// Placement of rings of `ring` ranks in a world of `ring * replicas` global ranks. Each replica is a data-parallel
/// copy of the ring with sequences of its own.
///
/// Schedules use ring ranks only. Code that moves bytes must translate peers with global_rank(): in a sub-ring the two
/// numberings differ, and using the ring rank as the peer works only if the ring is the whole world.
struct RingGroup {
    enum class Placement {
        consecutive,  ///< a replica holds neighbouring global ranks: a ring stays inside a host
        strided,      ///< a replica holds every `replicas`-th global rank
    };

    int ring = 1;
    int replicas = 1;
    Placement placement = Placement::consecutive;

    int world() const { return ring * replicas; }
    int global_rank(int replica, int ring_rank) const {
        return placement == Placement::consecutive ? replica * ring + ring_rank : ring_rank * replicas + replica;
    }
    int ring_rank(int global_rank) const {
        return placement == Placement::consecutive ? global_rank % ring : global_rank / replicas;
    }
    int replica(int global_rank) const {
        return placement == Placement::consecutive ? global_rank / ring : global_rank % replicas;
    }
};

}  // namespace ringlab::layouts
