#pragma once

namespace ringlab::layouts {

/// Ranks attend to other ranks' keys in groups of hosts, one launch for each: their own host, the nearer half of the
/// other hosts, and the farther half. `distance`: hosts from the rank's own one back to that of the keys. A launch for
/// each host left SMs idle more often, and one launch for all hosts had to wait for the last keys.
constexpr int seen_group(int distance, int hosts) { return distance == 0 ? 0 : distance < (hosts + 1) / 2 ? 1 : 2; }
constexpr int seen_groups = 3;

}  // namespace ringlab::layouts
