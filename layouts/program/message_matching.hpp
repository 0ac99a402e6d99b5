#pragma once

#include "layouts/program/program.hpp"

// Matches the messages of all ranks' programs.

namespace ringlab::layouts {

/// Adds to each rank's program a send for every fetch from it. An owner serves the first fetch of every rank, then the
/// second of every rank, and so on. This is one order of all fetches that agrees with the order of each rank, so the
/// added sends cannot form a cycle of waiting ranks.
void add_served_sends(Program& program);

/// Sets Instruction::partner of both halves of each message: the k-th send from one rank to another on a channel
/// belongs to the k-th receive. Throws Error that names both halves if they do not fit, or the half that has no
/// partner.
void match_messages(const Schedule& schedule, Program& program);

/// Sets Instruction::overlapped_flop of both halves of each message.
void set_overlapped_flop(const Schedule& schedule, Program& program);

}  // namespace ringlab::layouts
