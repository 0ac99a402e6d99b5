#include "sim/simulate.hpp"

#include "layouts/require.hpp"
#include "sim/kernels.hpp"
#include "sim/parallel.hpp"
#include "sim/simulation.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::sim {
namespace {

std::shared_ptr<TileModel> tiles_of(const layouts::Schedule& schedule, const Machine& machine,
                                    const SimOptions& options) {
    return options.compute == ComputeModel::tiles ? std::make_shared<TileModel>(schedule, machine) : nullptr;
}

Prediction played(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                  const std::shared_ptr<TileModel>& tiles) {
    require(options.replicas >= 1 && options.replicas <= (1 << 22) / schedule.ranks(),
            "{} rings of {} ranks; there must be one or more, of 2^22 ranks in all", options.replicas,
            schedule.ranks());
    if (options.clock == Clock::calibrated) {
        if (auto prediction = Simulation(schedule, machine, options, {}, tiles).run()) return *std::move(prediction);
        auto apart = options;
        apart.fold = false;
        return Simulation(schedule, machine, apart, {}, tiles).run().value();
    }
    // The clock depends on how busy ranks are, and that on the clock, though little.
    const auto power_flops = attention_cost(machine, schedule).power_flops;
    require(options.pause_busy_seconds >= 0 && options.pause_seconds >= options.pause_busy_seconds,
            "the pause between passes is {} s, and busy for {} s; it must not be negative, nor busy for longer",
            options.pause_seconds, options.pause_busy_seconds);
    auto quiet = options;
    quiet.trace = false;
    std::vector<double> clocks(static_cast<std::size_t>(schedule.ranks()) * static_cast<std::size_t>(options.replicas),
                               1);
    constexpr int rounds = 2;
    for (int round = 0; round < rounds && std::isfinite(power_flops); ++round) {
        Simulation simulation(schedule, machine, quiet, clocks, tiles);
        const auto found = simulation.run().value();
        clocks = sustained_clocks(found, clocks, simulation.flop(), simulation.powers(power_flops), options);
    }
    auto prediction = Simulation(schedule, machine, options, clocks, tiles).run().value();
    prediction.clock = *std::min_element(clocks.begin(), clocks.end());
    return prediction;
}

}  // namespace

Prediction simulate(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    return played(schedule, machine, options, tiles_of(schedule, machine, options));
}

std::vector<Picoseconds> simulate_repeatedly(const layouts::Schedule& schedule, const Machine& machine,
                                             const SimOptions& options, int repeats, int threads) {
    std::vector<Picoseconds> makespans(static_cast<std::size_t>(repeats));
    // Tiles are timed once by each thread: a share of the repeats is its own.
    const auto shares = static_cast<std::size_t>(std::clamp(threads, 1, std::max(1, repeats)));
    for_each_in_parallel(shares, threads, [&](std::size_t share) {
        const auto tiles = tiles_of(schedule, machine, options);
        auto disturbed = options;
        disturbed.trace = false;
        for (auto i = share; i < makespans.size(); i += shares) {
            disturbed.jitter.repeat = static_cast<int>(i);
            makespans[i] = played(schedule, machine, disturbed, tiles).makespan;
        }
    });
    return makespans;
}

}  // namespace ringlab::sim
