#pragma once

#include "experiments/planning/advice.hpp"
#include "sim/options.hpp"

#include <array>

namespace ringlab::experiments {

inline constexpr std::array advised_passes{layouts::Pass::forward, layouts::Pass::backward};

/// Of both passes.
struct Played {
    std::array<double, 2> seconds{};
    Losses losses;
    std::int64_t operations = 0;
    std::int64_t operations_of_rank = 0;
    std::int64_t looked_at = 0;  ///< operations, of all ranks that were played
};

/// By some of its ranks, among which the slowest is likely, each as if all others did the same.
Played play_some_ranks(const Advised& one, const Plan& plan, sim::ComputeModel model);

/// By the simulator, with so many rings side by side; the operations are not counted.
Played play_all_ranks(const Advised& one, const Plan& plan, int rings);

/// Of all ranks, if they have as many as the first, middle or last one with most, in both passes.
std::int64_t operations_of(const Plan& plan);

}  // namespace ringlab::experiments
