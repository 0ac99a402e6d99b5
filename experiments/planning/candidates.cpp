#include "experiments/planning/candidates.hpp"

#include "layouts/require.hpp"
#include "layouts/work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace ringlab::experiments {
namespace {

/// Visible pairs over those of a causal mask.
double density(const layouts::Mask& mask) {
    const layouts::Run all{0, 1, mask.tokens()};
    const auto pairs = static_cast<double>(layouts::visible_pairs(mask, {&all, 1}, layouts::KeyCounter({&all, 1})));
    const auto tokens = static_cast<double>(mask.tokens());
    return pairs / (tokens * (tokens + 1) / 2);
}

std::vector<int> ring_sizes(const Config& config, int gpus) {
    if (!config.ranks.empty()) return config.ranks;
    std::set<int> sizes{gpus};
    for (int size = 1; size < gpus; size *= 2) sizes.insert(size);
    return {sizes.begin(), sizes.end()};
}

std::vector<std::string> layouts_for(const Config& config, double visible) {
    if (!config.layouts.empty()) return config.layouts;
    std::vector<std::string> names{"contiguous", "zigzag", "striped"};
    if (visible < 0.9) names.insert(names.end(), {"striped:64", "balanced"});
    return names;
}

std::vector<std::string> schedules_for(const Config& config, const sim::Machine& machine, int ranks, double visible) {
    if (!config.algorithms.empty()) return config.algorithms;
    if (ranks == 1) return {"ring"};
    std::vector<std::string> names{"ring", "bidirectional", "all-gather", "pass-q", "ulysses"};
    if (config.latent.is_given()) names = {"ring", "bidirectional", "all-gather", "ulysses", "expanded:ring"};
    if (ranks <= machine.gpus_per_host) names.emplace_back("pull");
    // Over kernels a launch cannot wait for blocks inside.
    const bool copies = machine.inside_host.multiprocessors_per_channel == 0;
    if (ranks <= machine.gpus_per_host && copies) names.emplace_back("joined-ring");
    constexpr double hides_enough = 0.8;
    if (visible < hides_enough) names.emplace_back("seen");
    if (ranks > machine.gpus_per_host && ranks % machine.gpus_per_host == 0) {
        names.push_back(fmt::format("double-ring:{}", machine.gpus_per_host));
        names.push_back(fmt::format("ulysses:{}", machine.gpus_per_host));
    }
    return names;
}

/// Whether the layout makes a difference that may be for the better: where all ranks exchange heads each sees all
/// tokens, and where groups do, stripes of their blocks are scattered for nothing. Rows of single tokens lie in every
/// document, so that what a rank sees is all.
bool differs(const std::string& layout, const std::string& schedule) {
    if (schedule == "seen") return layout != "striped";
    if (schedule == "ulysses") return layout == "contiguous";
    return !schedule.starts_with("ulysses") || !layout.starts_with("striped");
}

}  // namespace

int gpus_of(const Config& config, const AdvisedMachine& machine) {
    const auto most = machine.machine.gpus();
    const auto largest = config.ranks.empty() ? 0 : *std::max_element(config.ranks.begin(), config.ranks.end());
    const auto gpus = config.gpus > 0 ? config.gpus : largest > 0 ? largest : static_cast<int>(most);
    require(gpus <= most, "--{} {}: machine '{}' has {} GPUs", config.gpus > 0 ? "gpus" : "ranks", gpus, machine.name,
            most);
    require(largest <= gpus, "--ranks {}: --gpus are {}", largest, gpus);
    return gpus;
}

std::vector<Advised> candidates(const Question& question, const AdvisedMachine& machine) {
    const auto& config = question.config;
    const auto gpus = gpus_of(config, machine);
    auto sizes = ring_sizes(config, gpus);
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    std::vector<Advised> all;
    for (const auto& mask : config.masks)
        for (const auto ranks : sizes)
            for (const auto tokens : sequence_lengths(config, gpus, 0)) {
                const auto visible = density(layouts::make_mask(expand_mask(mask, tokens, {}), tokens));
                require(visible > 0, "mask {} lets no row see anything; there is nothing to advise on", mask);
                for (const auto& layout : layouts_for(config, visible))
                    for (const auto& schedule : schedules_for(config, machine.machine, ranks, visible)) {
                        if (config.layouts.empty() && !differs(layout, schedule)) continue;
                        Advised one;
                        one.machine = &machine;
                        one.which = {"", mask, layout, schedule, "", ranks, tokens};
                        one.rings = std::max(1, std::min<int>(gpus / ranks, static_cast<int>(config.batch)));
                        one.batch = (config.batch + one.rings - 1) / one.rings;
                        all.push_back(std::move(one));
                    }
            }
    return all;
}

}  // namespace ringlab::experiments
