#pragma once

#include "layouts/program/program.hpp"
#include "layouts/program/walk.hpp"

#include <functional>
#include <optional>

namespace ringlab::layouts {

/// Deadlock check: walks all lanes without any times, with sends that wait for their receives. Returns an operation
/// that can never begin, or nullopt if all lanes come to their ends.
std::optional<StuckOperation> find_deadlock(const Program& program);

/// Sets Instruction::paced_by of messages between ranks with `is_kernel`, so that their two halves begin at about the
/// same time. For transfers that are kernels (NCCL), because a kernel that waits for the other half occupies SMs. Each
/// half waits for the computation of its own rank that corresponds to the one that the other half depends on: the one
/// of the same step and of shared heads that precedes it in the program and is an attend or of the same kind. If that
/// caused a deadlock, nothing is paced.
void pace_messages(
    Program& program, const std::function<bool(int rank, int peer)>& is_kernel = [](int, int) { return true; });

}  // namespace ringlab::layouts
