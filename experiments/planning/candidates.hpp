#pragma once

#include "experiments/planning/advice.hpp"
#include "sim/machine/options.hpp"

#include <array>
#include <vector>

namespace ringlab::experiments {

/// The combinations that are worth a look on a machine, the largest rings first: the lists that the configuration
/// gives, and else
/// - ring sizes: powers of two up to the GPUs, and all of them;
/// - layouts: contiguous, zigzag, striped, balanced, stripes of 64 where a mask is not causal alone, and `planned` for
///   packed documents;
/// - schedules: those that can differ: within a host no double ring, beyond it no pull; `seen` only where the mask
///   hides something that can be left out, beyond a host with and without its hosts named; those that exchange heads
///   over the layouts that matter to them.
std::vector<Advised> candidates(const Question& question, const AdvisedMachine& machine);

/// Variants of a candidate near the best, with other numbers in its schedule: other parts of the kv heads, or heads
/// exchanged in groups of another size. None if the configuration names the schedules.
std::vector<Advised> variants(const Question& question, const Advised& one, const layouts::Problem& problem);

/// Largest number of ranks of which all are looked at; of larger rings it is a sample.
inline constexpr int large_ring = 256;

/// Finds its busiest rank and the time of that rank's pairs in both passes at the best rate, from mask and layout
/// alone. Where ranks work on the rows that they own each is looked at, of large rings the first, the last and the
/// middle one; else the mean. Says so if it is impossible.
void set_floor(Advised& one, const layouts::Problem& problem);

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

/// Estimated number of operations of all ranks in both passes, as if every rank has as many as the first, the middle or
/// the last one, whichever has most.
std::int64_t operations_of(const Plan& plan);

}  // namespace ringlab::experiments
