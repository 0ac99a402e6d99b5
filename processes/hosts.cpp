#include "processes/session.hpp"

#include <algorithm>

namespace ringlab::processes {

std::vector<Host> hosts_from(const std::vector<int>& first_ranks, const std::vector<std::string>& names) {
    std::vector<Host> hosts;
    std::vector<int> firsts;
    for (std::size_t rank = 0; rank < first_ranks.size(); ++rank) {
        const auto at = std::ranges::find(firsts, first_ranks[rank]) - firsts.begin();
        if (at == std::ssize(firsts)) {
            firsts.push_back(first_ranks[rank]);
            hosts.push_back({names[rank], {}});
        }
        hosts[static_cast<std::size_t>(at)].ranks.push_back(static_cast<int>(rank));
    }
    const auto unlike = hosts;
    for (auto& host : hosts)
        if (std::ranges::count(unlike, host.name, &Host::name) > 1)
            host.name += fmt::format(" (of rank {})", host.ranks.front());
    return hosts;
}

}  // namespace ringlab::processes
