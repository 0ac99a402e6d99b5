#pragma once

#include "layouts/program.hpp"

#include <optional>

namespace ringlab::layouts {

/// An operation that can never begin.
struct Stuck {
    int rank = 0;
    OpIndex operation = 0;
};

/// Whether all lanes come to their ends, with sends that wait for their receives: the first operation that is left.
std::optional<Stuck> rehearse(const Program& program);

/// Lets the two halves of a message begin at about the same time (Instruction::paced_by), for transfers that are
/// kernels: one that waits for the other half holds multiprocessors. Each half waits for the attend of its own rank
/// that corresponds to what the other half comes after: of the same step, to the same heads, ahead of it in the
/// program. Where ranks would then wait for each other for ever, nothing is paced.
void pace(Program& program);

}  // namespace ringlab::layouts
