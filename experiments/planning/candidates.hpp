#pragma once

#include "experiments/planning/advice.hpp"

#include <vector>

namespace ringlab::experiments {

/// The combinations that are worth a look on a machine, the largest rings first: the lists that the configuration
/// gives, and else
/// - ring sizes: powers of two up to the GPUs, and all of them;
/// - layouts: contiguous, zigzag, striped, and stripes of 64 where a mask is not causal alone;
/// - schedules: those that can differ: within a host no double ring, beyond it no pull; `seen` only where the mask
/// hides
///   enough that there is something to leave out; those that exchange heads over the layouts that matter to them.
std::vector<Advised> candidates(const Question& question, const AdvisedMachine& machine);

/// GPUs of the machine that are to be used.
int gpus_of(const Config& config, const AdvisedMachine& machine);

}  // namespace ringlab::experiments
