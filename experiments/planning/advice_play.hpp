#pragma once

#include "experiments/planning/advice.hpp"
#include "sim/machine/options.hpp"

#include <array>

namespace ringlab::experiments {

/// Seconds of both passes.
struct Played {
    std::array<double, 2> seconds{};
    std::int64_t looked_at = 0;  ///< operations, of all ranks that were played
};

/// Predicts from some ranks, among which the slowest one is likely, each played as if all others did the same.
Played play_some_ranks(const Advised& one, const Plan& plan, const sim::SimOptions& options);

/// Predicts by the simulator. The operations are not counted.
Played play_all_ranks(const Advised& one, const Plan& plan, sim::Clock clock);

/// Where the time of both passes goes, found in the same two ways.
sim::Breakdown explain_by_some_ranks(const Advised& one, const Plan& plan, sim::Clock clock);
sim::Breakdown explain_by_all_ranks(const Advised& one, const Plan& plan, sim::Clock clock);

/// Corrects the estimate from one rank by the ratio of a simulation of all ranks, which share nothing, to a play of one
/// rank, both with the rate model. Leaves it as it is if too many ranks would have to be simulated. Returns how many
/// operations it played besides those of the simulation.
std::int64_t correct_by_all_ranks(Advised& one, const Plan& plan, sim::Clock clock);

/// Estimated number of operations of all ranks in both passes, as if every rank has as many as the first, the middle or
/// the last one, whichever has most.
std::int64_t operations_of(const Plan& plan);

}  // namespace ringlab::experiments
