#include "gpu/transports/rank_hosts.hpp"

#include "processes/peers.hpp"
#include "processes/watching/neighbours.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace ringlab::gpu {

using processes::append;
using processes::take;

namespace {

constexpr const char* ranks_per_host = "RINGLAB_RANKS_PER_HOST";

/// By rank, the name of its host and the environment variable as it was given. Throws Error if variables differ.
std::vector<Bytes> tell_all_the_host(Team& team, Clock::duration timeout) {
    const char* const given = std::getenv(ranks_per_host);
    const std::string pretended = given ? fmt::format("'{}'", given) : "not set";
    Bytes own;
    const auto name = host_name();
    append(own, std::vector<char>(name.begin(), name.end()));
    append(own, std::vector<char>(pretended.begin(), pretended.end()));
    const auto all = team.all_gather(team.first_local(), std::move(own), timeout);
    const auto pretended_by = [&](std::size_t rank) {
        std::span<const std::byte> bytes(all[rank]);
        std::vector<char> text;
        take(bytes, text);  // the name
        take(bytes, text);
        return std::string(text.begin(), text.end());
    };
    const auto first = pretended_by(0);
    for (std::size_t rank = 1; rank < all.size(); ++rank)
        require(pretended_by(rank) == first, "{} is {} for rank 0 and {} for rank {}; all ranks need the same",
                ranks_per_host, first, pretended_by(rank), rank);
    return all;
}

}  // namespace

HostName host_name() {
    HostName name{};
    require(gethostname(name.data(), HOST_NAME_MAX + 1) == 0, "this host does not tell its name: {}",
            std::strerror(errno));
    const auto space = static_cast<std::uint64_t>(processes::process_space());
    fmt::format_to(name.begin() + std::strlen(name.data()), ":{:016x}", space);
    return name;
}

RankHosts RankHosts::apart(int ranks) {
    std::vector<int> first_ranks(static_cast<std::size_t>(ranks));
    std::iota(first_ranks.begin(), first_ranks.end(), 0);
    return RankHosts(std::move(first_ranks));
}

RankHosts RankHosts::of_team(Team& team, Clock::duration timeout) {
    const bool one_process = team.local_size() == team.size();
    const auto all = one_process ? std::vector<Bytes>() : tell_all_the_host(team, timeout);
    std::vector<int> first_ranks(static_cast<std::size_t>(team.size()));
    if (const int each = pretended_ranks_per_host(); each > 0) {
        for (std::size_t rank = 0; rank < first_ranks.size(); ++rank)
            first_ranks[rank] = static_cast<int>(rank) / each * each;
        return RankHosts(std::move(first_ranks));
    }
    if (one_process) return {};
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        first_ranks[rank] = static_cast<int>(std::ranges::find(all, all[rank]) - all.begin());
    return RankHosts(std::move(first_ranks));
}

bool RankHosts::split_a_ring(const layouts::RingGroup& group) const {
    for (int rank = 0; rank < group.world(); ++rank)
        if (!share(rank, group.global_rank(group.replica(rank), 0))) return true;
    return false;
}

int pretended_ranks_per_host() {
    const char* const given = std::getenv(ranks_per_host);
    if (!given) return 0;
    char* end = nullptr;
    const auto ranks = std::strtol(given, &end, 10);
    require(end != given && *end == '\0' && ranks >= 1 && ranks <= 1'000'000,
            "{} is '{}'; it must be the number of consecutive ranks that count as a host", ranks_per_host, given);
    return static_cast<int>(ranks);
}

}  // namespace ringlab::gpu
