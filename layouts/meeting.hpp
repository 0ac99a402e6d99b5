#pragma once

#include "layouts/program.hpp"

// How the programs of all ranks meet.

namespace ringlab::layouts {

/// Adds the owner's halves of fetches. First all ranks' first fetches, then their second ones, and so on: an order of
/// all fetches that every rank's own agrees with, so none can wait for itself around other ranks.
void serve(Program& program);

/// Tells each half of a message its other half: the k-th send on a channel from one rank to another meets the k-th
/// receive. Throws Error that names both if they do not fit, or one that is alone.
void match_messages(const Schedule& schedule, Program& program);

/// Tells messages what their sender computes beside them.
void note_computing_beside(const Schedule& schedule, Program& program);

}  // namespace ringlab::layouts
