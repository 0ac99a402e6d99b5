#pragma once

#include "experiments/planning/advice.hpp"
#include "sim/machine/options.hpp"

#include <array>

namespace ringlab::experiments {

inline constexpr std::array advised_passes{layouts::Pass::forward, layouts::Pass::backward};

/// Seconds of both passes.
struct Played {
    std::array<double, 2> seconds{};
    std::int64_t looked_at = 0;  ///< operations, of all ranks that were played
};

/// By some of its ranks, among which the slowest is likely, each as if all others did the same.
Played play_some_ranks(const Advised& one, const Plan& plan, const sim::SimOptions& options);

/// By the simulator; the operations are not counted.
Played play_all_ranks(const Advised& one, const Plan& plan, sim::Clock clock);

/// Where the time of both goes, by the same means.
sim::Breakdown explain_by_some_ranks(const Advised& one, const Plan& plan, sim::Clock clock);
sim::Breakdown explain_by_all_ranks(const Advised& one, const Plan& plan, sim::Clock clock);

/// Sets right what one rank says by what the recurrence over all ranks says beside it, both with attends by rate.
/// Leaves it where ranks differ or are too many for that. Returns how many operations it took beside those of the
/// recurrence.
std::int64_t correct_by_recurrence(Advised& one, const Plan& plan, sim::Clock clock);

/// Of all ranks, if they have as many as the first, middle or last one with most, in both passes.
std::int64_t operations_of(const Plan& plan);

}  // namespace ringlab::experiments
