#pragma once

#include "experiments/faults/broken_schedule.hpp"
#include "experiments/faults/mistakes.hpp"

#include <initializer_list>
#include <string>

namespace ringlab::experiments {

/// The scene's plan, with such a break in its schedules of these passes.
Plan broken(const Scene& scene, BrokenSchedule::Break how, std::initializer_list<layouts::Pass> passes);

// Mistakes about who sees whom, and who is there at all; numbered as in Mistake.

/// 6. The mask is asked with positions inside each block.
Consequence local_mask(const Scene& scene);

/// "causal+documents:A,B,C" where no end of a document is a multiple of the ranks; cut so that all are.
std::string documents(std::int64_t tokens, int ranks, bool cut);

/// 7. cu_seqlens / P on every rank.
Consequence cut_documents(const Scene& scene);

/// 13. Under "window:...+sink:N" blocks travel, and are attended to, by the window alone.
Consequence dropped_first_keys(const Scene& scene);

/// "causal+valid:0-N" with an eighth of the tokens and one more behind N.
std::string tail_padding(std::int64_t tokens);

/// 14. The loss is a mean over all tokens where it should be one over those that are no padding.
Consequence averaged_padding(const Scene& scene);

}  // namespace ringlab::experiments
