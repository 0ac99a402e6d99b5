#pragma once

#include "layouts/schedules/schedule.hpp"
#include "tests/layouts/cases.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

// What tests of schedules run over.

namespace ringlab::layouts::testing {

inline const std::vector<std::string> algorithms{
    "ring",          "all-gather", "all-gather:2",  "all-gather:4", "pull",         "pull:2",        "ulysses",
    "ulysses:2",     "pass-q",     "bidirectional", "seen",         "seen:1",       "double-ring:1", "double-ring:2",
    "double-ring:4", "merge",      "merge:tree",    "joined-ring",  "joined-ring:4"};

/// Whether the ranks suit the algorithm, with 8 query heads.
bool suits(const std::string& algorithm, int ranks);

inline constexpr std::array passes{Pass::forward, Pass::backward};

/// 8 query heads, 4 kv heads, of 24 and 16 dims, batch 3.
Problem problem_of(const Mask& mask);

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
