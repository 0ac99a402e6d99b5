#include "sim/play/clocks.hpp"

#include "sim/tiles/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ringlab::sim {
namespace {

/// One rank: seconds of computing at the clock of the calibration, other seconds of a repeated pass, FLOP, and FLOP/s
/// that power allows.
struct RankLoad {
    double busy, rest, flop, power;
};

double period_at(const RankLoad& rank, double clock) { return rank.rest + rank.busy / clock; }

/// Highest clock, at most 1, at which the rank uses no more power than it has in a period of `least` seconds or longer.
double clock_of(const RankLoad& rank, double least, const SimOptions& options) {
    if (rank.busy == 0) return 1;
    double low = 0, high = 1;
    for (int halvings = 0; halvings < 50; ++halvings) {
        const auto clock = (low + high) / 2;
        // Seconds for which the rank would use all its power. Other attends, in the pause, take as much power per
        // second.
        const auto taken =
            rank.flop * clock * clock / rank.power * (1 + options.pause_busy_seconds * clock / rank.busy);
        (taken <= std::max(least, period_at(rank, clock)) ? low : high) = clock;
    }
    return high;
}

}  // namespace

std::vector<double> clocks_within_power(const Prediction& prediction, std::span<const double> before,
                                        std::span<const double> flop, std::span<const double> powers,
                                        const SimOptions& options) {
    const auto period = layouts::to_seconds(prediction.makespan) + options.pause_seconds;
    std::vector<RankLoad> ranks;
    for (std::size_t rank = 0; rank < prediction.ranks.size(); ++rank) {
        const auto busy = layouts::to_seconds(prediction.ranks[rank].compute);
        ranks.push_back({busy * before[rank], period - busy, flop[rank], powers[rank]});
    }
    double longest = 0;
    for (const auto& rank : ranks) longest = std::max(longest, period_at(rank, clock_of(rank, 0, options)));
    std::vector<double> clocks;
    for (const auto& rank : ranks) clocks.push_back(clock_of(rank, longest, options));
    return clocks;
}

std::vector<double> sustained_flops_by_rank(const layouts::Schedule& schedule, const Machine& machine,
                                            const Topology& topology, int ranks) {
    std::vector<double> all(static_cast<std::size_t>(ranks), attention_cost(machine, schedule).power_flops);
    const auto& ratios = machine.power_of_gpus;
    for (std::size_t rank = 0; rank < all.size() && !ratios.empty(); ++rank)
        all[rank] *= ratios[static_cast<std::size_t>(topology.gpu(static_cast<int>(rank))) % ratios.size()];
    return all;
}

bool power_limits_clocks(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    return options.clock == Clock::sustained && std::isfinite(attention_cost(machine, schedule).power_flops);
}

std::vector<double> find_sustained_clocks(std::span<const double> powers, const SimOptions& options,
                                          const std::function<PlayedPass(const std::vector<double>&)>& play) {
    std::vector<double> clocks(powers.size(), 1);
    constexpr int rounds = 2;
    for (int round = 0; round < rounds; ++round) {
        const auto found = play(clocks);
        auto next = clocks_within_power(found.prediction, clocks, found.flop, powers, options);
        if (next == clocks) break;
        clocks = std::move(next);
    }
    return clocks;
}

}  // namespace ringlab::sim
