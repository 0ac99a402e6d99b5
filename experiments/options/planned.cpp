#include "experiments/options/planned.hpp"

#include "experiments/files/resources.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/cost/plan_prices.hpp"

namespace ringlab::experiments {

bool is_planned(const std::string& layout) { return layouts::Spec::parse(layout).name == "planned"; }

layouts::PlanPrices prices_of(const std::string& layout, const std::string& schedule, const layouts::Problem& problem,
                              int ranks, layouts::DType gradient_dtype) {
    const auto machine = layouts::Spec::parse(layout).arguments;
    const auto prices = machine.empty()
                            ? layouts::default_plan_prices()
                            : sim::plan_prices(sim::load_machine(find_resource(machine, "machines", ".toml")), problem,
                                               ranks, gradient_dtype);
    auto travels = layouts::Spec::parse(schedule);
    if (travels.name == layouts::expanded_schedule_name) travels = layouts::Spec::parse(travels.arguments);
    // All other schedules move whole blocks. Some attend to each in a launch of its own, which the price leaves out.
    return travels.name == "seen" ? prices : layouts::for_whole_blocks(prices);
}

layouts::Layout laid_out(const std::string& layout, const std::string& schedule, const layouts::Mask& mask, int ranks,
                         const layouts::Problem& problem, layouts::DType gradient_dtype) {
    layouts::layout_granularity(layout, ranks);  // says what is wrong with the name
    if (!is_planned(layout)) return layouts::make_layout(layout, mask, ranks);
    return layouts::planned_layout(mask, ranks, prices_of(layout, schedule, problem, ranks, gradient_dtype), layout);
}

std::vector<std::string> for_machines(const std::vector<std::string>& layouts,
                                      const std::vector<std::string>& machines) {
    std::vector<std::string> all;
    for (const auto& layout : layouts)
        if (layout == "planned" && !machines.empty())
            for (const auto& machine : machines) all.push_back("planned:" + machine);
        else
            all.push_back(layout);
    return all;
}

}  // namespace ringlab::experiments
