#include "experiments/prediction/machines.hpp"

#include "experiments/files/resources.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ringlab::experiments {
namespace {

std::int64_t figures_that_are(const sim::Machine& machine, const char* how) {
    return std::ranges::count_if(machine.figures,
                                 [&](const sim::Figure& figure) { return figure.source.starts_with(how); });
}

/// The machine files of Ringlab with at least so many GPUs, the smallest first: "h200_rails (2048), ...".
std::string machines_with(std::int64_t gpus) {
    std::vector<std::pair<std::int64_t, std::string>> found;
    for (const auto& name : resources("machines", ".toml")) {
        const auto has = sim::load_machine(find_resource(name, "machines", ".toml")).gpus();
        if (has >= gpus) found.emplace_back(has, name);
    }
    std::ranges::sort(found);
    std::string text;
    for (const auto& [has, name] : found) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, has);
    return text;
}

}  // namespace

std::string machine_line(const std::string& name) {
    const auto machine = sim::load_machine(find_resource(name, "machines", ".toml"));
    const auto error = uncertainty_of(machine, name);
    return fmt::format("{}, up to {} ranks: {}. {} of its {} figures are measured or fitted, {} assumed; {}",
                       machine.name, machine.gpus(), machine.description,
                       figures_that_are(machine, "measured") + figures_that_are(machine, "fitted"),
                       machine.figures.size(), figures_that_are(machine, "assumed"),
                       error.known() ? fmt::format("on {} measured rings {:.1f} % off on average, {:.1f} at most",
                                                   error.rings.size(), 100 * error.mean(), 100 * error.largest())
                                     : error.source);
}

void require_machine_gpus(const sim::Machine& machine, std::int64_t needed, const std::string& asked) {
    if (needed <= machine.gpus()) return;
    const auto others = machines_with(needed);
    fail("{}: machine '{}' has {} GPUs; {}", asked, machine.name, machine.gpus(),
         others.empty() ? "no machine file of Ringlab has as many" : "--machines with as many: " + others);
}

}  // namespace ringlab::experiments
