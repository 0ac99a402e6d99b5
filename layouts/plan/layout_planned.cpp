#include "layouts/plan/plan.hpp"

namespace ringlab::layouts {
namespace {

Layout planned(const std::string& machine, const Mask& mask, int ranks) {
    require(
        machine.empty(),
        "layout planned:{0} is for the prices of machine {0}, which experiments read alone; planned by itself is for "
        "H200 in hosts of eight",
        machine);
    auto prices = default_plan_prices();
    prices.crosses_once = ranks > prices.ranks_per_host;  // inside one host `seen` has a launch for each rank
    return planned_layout(mask, ranks, prices);
}

const LayoutRegistration registered_planned(
    "planned", "planned[:MACHINE]",
    "documents shorter than a rank's share stay whole, longer ones are spread so that "
    "work and traffic cost least on MACHINE",
    {"planned"}, {[](const std::string&, int ranks) -> std::int64_t { return ranks; }, {}, planned});

}  // namespace
}  // namespace ringlab::layouts
