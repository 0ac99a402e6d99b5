#pragma once

#include "tests/mistakes/broken_schedule.hpp"
#include "tests/mistakes/mistakes.hpp"

#include <initializer_list>
#include <string>

namespace ringlab::experiments {

/// The scene's plan, in which the schedules of these passes have the given mistake.
Plan broken(const Scene& scene, BrokenSchedule::Break how, std::initializer_list<layouts::Pass> passes);

// Mistakes in masks: which keys a row sees, and which tokens are padding. Numbers as in Mistake.

/// 6. The mask is asked with positions inside each block.
Consequence local_mask(const Scene& scene);

/// "causal+documents:A,B,C" where no end of a document is a multiple of the ranks; cut so that all are.
std::string documents(std::int64_t tokens, int ranks, bool cut);

/// 7. cu_seqlens / P on every rank.
Consequence cut_documents(const Scene& scene);

/// 13. Under "window:...+sink:N" the window alone decides which blocks travel and are attended to, so the first keys
/// are missing.
Consequence dropped_first_keys(const Scene& scene);

/// "causal+valid:0-N" with an eighth of the tokens and one more behind N.
std::string tail_padding(std::int64_t tokens);

/// 14. The loss is the mean over all tokens, but should be the mean over those that are not padding.
Consequence averaged_padding(const Scene& scene);

}  // namespace ringlab::experiments
