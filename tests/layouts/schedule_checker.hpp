#pragma once

#include "layouts/program/program.hpp"
#include "tests/layouts/cases.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

// What tests of schedules run over, and what is wrong with operations.

namespace ringlab::layouts::testing {

/// 8 query heads, 4 kv heads, of 24 and 16 dims, batch 3; the tokens are those of a mask.
inline const Problem eight_heads{.batch = 3, .query_heads = 8, .kv_heads = 4, .head_dim = 24, .value_dim = 16};
Problem problem_of(const Mask& mask);

/// Examples of schedules for them, and those for 4 ranks.
inline const Names schedule_names([] { return ringlab::tests::schedules_for(eight_heads); });
inline const Names schedule_names_of_4_ranks([] { return ringlab::tests::schedules_for(eight_heads, {4}); });

inline bool suits(const std::string& schedule_name, int ranks) {
    return ringlab::tests::suits(eight_heads, schedule_name, ranks);
}

inline constexpr std::array passes{Pass::forward, Pass::backward};

std::unique_ptr<Schedule> schedule_of(const Case& c, const ScheduleOptions& options);

/// A case of exactly `tokens`, no padding.
Case exact_case(const std::string& mask, const std::string& layout, std::int64_t tokens, int ranks);

struct Traffic {
    std::int64_t messages = 0;
    std::int64_t bytes = 0;
    friend bool operator==(const Traffic&, const Traffic&) = default;
};
std::ostream& operator<<(std::ostream& out, const Traffic& t);

/// What all ranks together send (or fetch) of a pool.
Traffic traffic_of(const Schedule& schedule, Pool pool);

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
