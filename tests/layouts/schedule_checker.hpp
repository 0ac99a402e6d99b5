#pragma once

#include "layouts/schedule.hpp"

#include <string>
#include <vector>

namespace ringlab::layouts::testing {

/// The operations of every rank, written out.
using Program = std::vector<std::vector<Op>>;

Program program_of(const Schedule& schedule);

/// Visible pairs by rank and owner, counted one by one.
using CellTable = std::vector<std::vector<std::int64_t>>;

CellTable count_cells(const Mask& mask, const Layout& layout);

/// Everything that is wrong with `program` as the program of `schedule`; empty if it is right under every timing that
/// the rules of Op allow:
/// - each operation is well formed, its cells and bytes are what it says, dependencies point backwards;
/// - the k-th message of a payload from one rank to another is received as the k-th, with equal owner, heads and bytes;
/// - any two operations of a rank that touch one slot, at least one of them writing, are ordered by the rank's own
///   lanes and dependencies. Rendezvous with peers only adds order, so this holds for buffered messages as well;
/// - run lane by lane, with sends that wait for their receives, every operation ends;
/// - run so, every operation finds in its slots what it names; each visible (rank, owner, head) is attended to exactly
///   once and nothing else is; a backward pass leaves in slot 0 of every rank the part of each rank that sees its
///   block, once.
/// As all conflicting accesses are ordered, what the one run finds is what every run finds.
std::vector<std::string> violations(const Schedule& schedule, const Program& program, const CellTable& cells);

/// Whether operation `first` ends before `second` begins, by the rank's own lanes and dependencies.
bool happens_before(const std::vector<Op>& ops, OpIndex first, OpIndex second);

}  // namespace ringlab::layouts::testing
