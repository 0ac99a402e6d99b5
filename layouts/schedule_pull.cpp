#include "layouts/gathered.hpp"

namespace ringlab::layouts {
namespace {

const ScheduleRegistration registration(
    "pull", "pull",
    "every rank fetches the K/V blocks that it needs from their owners, kv head by kv head, nearest first",
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        require(arguments.empty(), "schedule pull takes no arguments, got '{}'", arguments);
        const GatheredSchedule::Style style{true, static_cast<int>(problem.kv_heads)};
        return std::make_unique<GatheredSchedule>(problem, mask, layout, options, style);
    });

}  // namespace
}  // namespace ringlab::layouts
