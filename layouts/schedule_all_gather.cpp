#include "layouts/gathered.hpp"

namespace ringlab::layouts {
namespace {

const ScheduleRegistration registration(
    "all-gather", "all-gather[:GROUPS]",
    "K/V of all ranks are gathered, one of GROUPS kv-head groups at a time (1), while the last one is attended to",
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        const auto groups = arguments.empty() ? 1 : parse_count(arguments, "the number of head groups", 1);
        require(groups <= problem.kv_heads, "{} head groups of {} kv heads; at most one group per kv head", groups,
                problem.kv_heads);
        return std::make_unique<GatheredSchedule>(problem, mask, layout, options,
                                                  GatheredSchedule::Style{false, static_cast<int>(groups)});
    });

}  // namespace
}  // namespace ringlab::layouts
