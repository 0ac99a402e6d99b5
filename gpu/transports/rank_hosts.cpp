#include "gpu/transports/rank_hosts.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace ringlab::gpu {

RankHosts RankHosts::apart(int ranks) {
    std::vector<int> first_ranks(static_cast<std::size_t>(ranks));
    std::iota(first_ranks.begin(), first_ranks.end(), 0);
    return RankHosts(std::move(first_ranks));
}

RankHosts RankHosts::of_team(Team& team, Clock::duration timeout) {
    std::vector<int> first_ranks(static_cast<std::size_t>(team.size()));
    if (const int each = pretended_ranks_per_host(); each > 0) {
        for (std::size_t rank = 0; rank < first_ranks.size(); ++rank)
            first_ranks[rank] = static_cast<int>(rank) / each * each;
        return RankHosts(std::move(first_ranks));
    }
    if (team.local_size() == team.size()) return {};
    std::array<char, 64> name{};
    require(gethostname(name.data(), name.size() - 1) == 0, "this host does not tell its name");
    Bytes own(name.size());
    std::memcpy(own.data(), name.data(), name.size());
    const auto all = team.all_gather(team.first_local(), std::move(own), timeout);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        first_ranks[rank] = static_cast<int>(std::ranges::find(all, all[rank]) - all.begin());
    return RankHosts(std::move(first_ranks));
}

bool RankHosts::are_several() const {
    return std::ranges::any_of(first_ranks_, [&](int first) { return first != first_ranks_.front(); });
}

int pretended_ranks_per_host() {
    const char* const given = std::getenv("RINGLAB_RANKS_PER_HOST");
    if (!given) return 0;
    char* end = nullptr;
    const auto ranks = std::strtol(given, &end, 10);
    require(end != given && *end == '\0' && ranks >= 1 && ranks <= 1'000'000,
            "RINGLAB_RANKS_PER_HOST is '{}'; it must be the number of consecutive ranks that count as a host", given);
    return static_cast<int>(ranks);
}

}  // namespace ringlab::gpu
