#pragma once

#include <cstdlib>
#include <string>

namespace ringlab::tests {

/// While it exists, so many consecutive ranks count as a host (gpu::RankHosts::of_team()).
class PretendedHosts {
public:
    explicit PretendedHosts(int ranks_per_host) {
        setenv("RINGLAB_RANKS_PER_HOST", std::to_string(ranks_per_host).c_str(), 1);
    }
    ~PretendedHosts() { unsetenv("RINGLAB_RANKS_PER_HOST"); }
    PretendedHosts(const PretendedHosts&) = delete;
    PretendedHosts& operator=(const PretendedHosts&) = delete;
};

}  // namespace ringlab::tests
