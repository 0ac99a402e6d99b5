#pragma once

#include "experiments/planning/advice.hpp"

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

/// Number of GPUs of the machine that are to be used.
int gpus_of(const SweepConfig& sweep, int asked, const AdvisedMachine& machine);

}  // namespace ringlab::experiments
