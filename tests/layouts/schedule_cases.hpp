#pragma once

#include "layouts/schedules/schedule.hpp"
#include "tests/layouts/cases.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

// What tests of schedules run over.

namespace ringlab::layouts::testing {

/// 8 query heads, 4 kv heads, of 24 and 16 dims, batch 3; the tokens are those of a mask.
inline const Problem eight_heads{.batch = 3, .query_heads = 8, .kv_heads = 4, .head_dim = 24, .value_dim = 16};
Problem problem_of(const Mask& mask);

/// Examples of schedules for them, and those for 4 ranks.
inline const Names algorithms([] { return ringlab::tests::schedules_for(eight_heads); });
inline const Names algorithms_of_4_ranks([] { return ringlab::tests::schedules_for(eight_heads, {4}); });

inline bool suits(const std::string& algorithm, int ranks) {
    return ringlab::tests::suits(eight_heads, algorithm, ranks);
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

}  // namespace ringlab::layouts::testing
