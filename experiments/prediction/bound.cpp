#include "experiments/prediction/bound.hpp"

#include "sim/play/simulate.hpp"

namespace ringlab::experiments {

bool packs_documents(const std::string& mask) { return mask.find("documents") != std::string::npos; }

std::array<double, 2> least_seconds(Case which, const layouts::Problem& problem, const sim::Machine& machine,
                                    sim::SimOptions options) {
    which.layout = "contiguous";
    which.schedule = "seen";
    options.free = sim::Cause::links;
    options.replicas = 1;
    options.placement.clear();
    options.trace = false;
    const auto plan = make_plan(which, problem);
    std::array<double, 2> seconds{};
    for (std::size_t pass = 0; pass < both_passes.size(); ++pass) {
        for (const auto& rank : sim::simulate(*plan.schedule(both_passes[pass]), machine, options).ranks)
            seconds[pass] += layouts::to_seconds(rank.compute);
        seconds[pass] /= which.ranks;
    }
    return seconds;
}

}  // namespace ringlab::experiments
