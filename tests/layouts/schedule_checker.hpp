#pragma once

#include "layouts/program/program.hpp"

#include <string>
#include <vector>

namespace ringlab::layouts::testing {

/// The operations of every rank, written out.
using Written = std::vector<std::vector<Op>>;

Written written(const Schedule& schedule);

/// A schedule with the slots, channels and blocks of another, and operations of one's own.
class WrittenSchedule : public Schedule {
public:
    WrittenSchedule(const Schedule& like, Written ops);
    Ops ops(int rank) const override;

private:
    Written ops_;
};

/// Everything that is wrong with `ops` as the operations of `schedule`; empty if nothing is, under every timing that
/// the rules of Op allow:
/// - resolve() accepts them;
/// - their numbers of visible pairs are what they say;
/// - run token by token and head by head, every operation finds in its slots what it names, no row attends to a key or
///   takes it in twice, and at the end every row has taken in the keys that it sees and no other; a backward pass
///   leaves in dq of every row the part of each key that it sees, and in dk and dv of every key the part of each row
///   that sees it, once.
/// As resolve() has all conflicting accesses put in order, what the one run finds is what every run finds.
/// For at most 128 tokens.
std::vector<std::string> violations(const Schedule& schedule, const Written& ops);

/// Whether operation `first` ends before `second` begins, by the rank's own lanes and dependencies.
bool happens_before(const std::vector<Op>& ops, OpIndex first, OpIndex second);

}  // namespace ringlab::layouts::testing
