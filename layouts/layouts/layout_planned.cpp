#include "layouts/layouts/plan.hpp"

namespace ringlab::layouts {
namespace {

Layout planned(const std::string& machine, const Mask& mask, int ranks) {
    require(
        machine.empty(),
        "layout planned:{0} is for the prices of machine {0}, which experiments read alone; planned by itself is for "
        "H200 in hosts of eight",
        machine);
    return planned_layout(mask, ranks, default_plan_prices());
}

const LayoutRegistration registered_planned("planned", "planned[:MACHINE]",
                                            "documents shorter than a share stay whole, longer ones are spread as work "
                                            "and traffic on MACHINE cost least",
                                            {[](const std::string&, int ranks) -> std::int64_t { return ranks; },
                                             {},
                                             planned});

}  // namespace
}  // namespace ringlab::layouts
