#include "sim/play/simulate.hpp"

#include "layouts/basics/require.hpp"
#include "sim/play/clocks.hpp"
#include "sim/play/simulation.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace ringlab::sim {
namespace {

/// Calls body(i) once for each i in [0, count), on up to `threads` threads, and returns when all calls have ended. If a
/// call throws, no further ones are begun, and the first exception is thrown again when the others have ended.
template <class Body>
void for_each_in_parallel(std::size_t count, int threads, const Body& body) {
    std::atomic<std::size_t> next = 0;
    std::exception_ptr thrown;
    std::mutex one;
    const auto work = [&] {
        try {
            for (std::size_t i = 0; (i = next++) < count;) body(i);
        } catch (...) {
            next = count;
            const std::lock_guard lock(one);
            if (!thrown) thrown = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> others;
        for (std::size_t i = 1; i < count && i < static_cast<std::size_t>(threads); ++i) others.emplace_back(work);
        work();
    }
    if (thrown) std::rethrow_exception(thrown);
}

}  // namespace

Prediction simulate(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                    const std::shared_ptr<TileModel>& tiles) {
    require(options.replicas >= 1 && options.replicas <= (1 << 22) / schedule.ranks(),
            "{} rings of {} ranks; there must be at least one ring, and at most 2^22 ranks in all", options.replicas,
            schedule.ranks());
    require(options.pause_busy_seconds >= 0 && options.pause_seconds >= options.pause_busy_seconds,
            "the pause between passes is {} s, of which {} s are busy; neither may be negative, and the busy part not "
            "longer",
            options.pause_seconds, options.pause_busy_seconds);
    const auto play = [&](const std::vector<double>& clocks, bool trace) {
        auto some = options;
        some.trace = trace;
        Simulation simulation(schedule, machine, some, clocks, tiles);
        return PlayedPass{simulation.run(), simulation.flop()};
    };
    if (!power_limits_clocks(schedule, machine, options)) return play({}, options.trace).prediction;
    std::pair<std::vector<double>, Prediction> last;
    const auto ranks = schedule.ranks() * options.replicas;
    const auto powers = sustained_flops_by_rank(schedule, machine, Topology(ranks, machine, options), ranks);
    const auto clocks = find_sustained_clocks(powers, options, [&](const std::vector<double>& at) {
        auto found = play(at, false);
        last = {at, found.prediction};
        return found;
    });
    auto prediction =
        options.trace || clocks != last.first ? play(clocks, options.trace).prediction : std::move(last.second);
    prediction.clock = *std::min_element(clocks.begin(), clocks.end());
    prediction.clocks = clocks;
    return prediction;
}

Prediction simulate(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    return simulate(schedule, machine, options, make_tiles(schedule, machine, options));
}

std::vector<Picoseconds> simulate_repeatedly(const layouts::Schedule& schedule, const Machine& machine,
                                             const SimOptions& options, int repeats, int threads) {
    std::vector<Picoseconds> makespans(static_cast<std::size_t>(repeats));
    // Each thread computes tile times once, for its share of the repeats.
    const auto shares = static_cast<std::size_t>(std::clamp(threads, 1, std::max(1, repeats)));
    for_each_in_parallel(shares, threads, [&](std::size_t share) {
        const auto tiles = make_tiles(schedule, machine, options);
        auto disturbed = options;
        disturbed.trace = false;
        for (auto i = share; i < makespans.size(); i += shares) {
            disturbed.jitter.repeat = static_cast<int>(i);
            makespans[i] = simulate(schedule, machine, disturbed, tiles).makespan;
        }
    });
    return makespans;
}

}  // namespace ringlab::sim
