#pragma once

#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"

#include <vector>

namespace ringlab::sim {

/// The kind of path that a message takes.
enum class Route {
    inside_host,
    leaf,   ///< to another host through one leaf switch: two network ports
    spine,  ///< to another leaf switch, through the spine
};
inline constexpr int route_count = 3;

/// Where the ranks of all rings are on a machine, and what lies between them.
class Topology {
public:
    /// For `ranks` ranks; `machine` must outlive it. Throws Error if they do not fit on the machine, or
    /// options.placement is impossible.
    Topology(int ranks, const Machine& machine, const SimOptions& options);

    int gpu(int rank) const { return placement_.empty() ? rank : placement_[static_cast<std::size_t>(rank)]; }
    int host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
    int hosts() const { return hosts_in_use_; }

    /// The network port that a rank uses for messages to other hosts, counted host by host; leaf(): its leaf switch.
    int port(int rank) const;
    int leaf(int rank) const;

    Route route(int source, int destination) const {
        if (host(source) == host(destination)) return Route::inside_host;
        return leaf(source) == leaf(destination) ? Route::leaf : Route::spine;
    }

private:
    const Machine& machine_;
    std::vector<int> placement_;
    std::vector<int> hosts_;  // by rank
    int hosts_in_use_ = 0;
};

}  // namespace ringlab::sim
