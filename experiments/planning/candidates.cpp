#include "experiments/planning/candidates.hpp"

#include "experiments/options/case.hpp"
#include "experiments/prediction/machines.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/layouts/visible_pairs.hpp"
#include "sim/tiles/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace ringlab::experiments {
namespace {

std::vector<int> ring_sizes(const SweepConfig& sweep, int gpus) {
    if (!sweep.ranks.empty()) return sweep.ranks;
    std::set<int> sizes{gpus};
    for (int size = 1; size < gpus; size *= 2) sizes.insert(size);
    return {sizes.begin(), sizes.end()};
}

std::vector<std::string> layouts_for(const SweepConfig& sweep, const std::string& mask, double visible) {
    if (!sweep.layouts.empty()) return sweep.layouts;
    std::vector<std::string> names{"contiguous", "zigzag", "striped", "balanced"};
    if (packs_documents(mask)) names.emplace_back("planned");
    if (visible < 0.9) names.emplace_back("striped:64");
    return names;
}

std::vector<std::string> schedules_for(const ProblemConfig& problem, const sim::Machine& machine, int ranks,
                                       double visible) {
    if (ranks == 1) return {"ring"};
    std::vector<std::string> names{"ring", "bidirectional", "all-gather", "pass-q", "ulysses"};
    if (problem.latent.is_given()) names = {"ring", "bidirectional", "all-gather", "ulysses", "expanded:ring"};
    if (ranks <= machine.gpus_per_host) names.emplace_back("pull");
    // If messages are kernels, a fused launch cannot wait for blocks.
    const bool copies = !machine.inside_host.uses_kernels();
    if (ranks <= machine.gpus_per_host && copies) names.emplace_back("joined-ring");
    // `seen` saves little under a causal mask. That can be enough to win, but it is worth trying only for rings that
    // can be simulated.
    constexpr double hides_much = 0.8, hides_some = 1.5;
    constexpr int small_ring = 64;
    const bool sees_little = visible < (ranks <= small_ring ? hides_some : hides_much);
    if (sees_little) names.emplace_back("seen");
    if (ranks > machine.gpus_per_host && ranks % machine.gpus_per_host == 0) {
        if (sees_little) names.push_back(fmt::format("seen:64:{}", machine.gpus_per_host));
        names.push_back(fmt::format("double-ring:{}", machine.gpus_per_host));
        names.push_back(fmt::format("ulysses:{}", machine.gpus_per_host));
    }
    return names;
}

/// Whether the layout can be an improvement with this schedule. If all ranks exchange heads, each sees all tokens and
/// the layout does not matter, so one is enough. If groups exchange heads, stripes only scatter tokens. With stripes of
/// one token every rank has rows in every document and sees all keys, so `seen` saves nothing. `planned` is made for
/// `seen`; under schedules that move whole blocks it is one of the other layouts.
bool differs(const std::string& layout, const std::string& schedule) {
    if (schedule.starts_with("seen")) return layout != "striped";
    if (layout == "planned") return false;
    if (schedule == "ulysses") return layout == "contiguous";
    return !schedule.starts_with("ulysses") || !layout.starts_with("striped");
}

std::vector<std::string> variants_of(const std::string& schedule, int ranks, const layouts::Problem& problem) {
    std::vector<std::string> names;
    const auto add = [&](const std::string& family, std::int64_t number) {
        if (auto name = fmt::format("{}:{}", family, number); name != schedule) names.push_back(std::move(name));
    };
    for (const auto* family : {"pull", "joined-ring", "all-gather"})
        for (std::int64_t parts = 2; schedule == family && parts <= std::min<std::int64_t>(8, problem.kv_heads);
             parts *= 2)
            if (problem.kv_heads % parts == 0) add(family, parts);
    if (schedule.starts_with("ulysses"))
        for (int group = 2; group < ranks; group *= 2)
            if (ranks % group == 0) add("ulysses", group);
    return names;
}

/// Number of GPUs of the machine that are to be used.
int gpus_of(const Config& config, const sim::Machine& machine) {
    const auto& ranks = config.sweep.ranks;
    const auto asked = config.advice.gpus, largest = ranks.empty() ? 0 : std::ranges::max(ranks);
    if (asked == 0) return largest > 0 ? largest : static_cast<int>(machine.gpus());
    require_machine_gpus(machine, asked, fmt::format("--gpus {}", asked));
    require(largest <= asked, "--ranks {}: there are only {} --gpus", largest, asked);
    return asked;
}

}  // namespace

void set_floor(Advised& one, const layouts::Problem& problem) {
    try {
        const auto ranks = one.setup.ranks;
        const auto length = one.setup.tokens;
        const auto granularity = layouts::layout_granularity(one.setup.layout, ranks);
        const auto tokens = (length + granularity - 1) / granularity * granularity;
        const auto mask = layouts::make_mask(expand_mask(one.setup.mask, length, {}), length);
        const auto padded = layouts::pad(mask, tokens);
        auto sized = problem;
        sized.tokens = tokens;
        const auto layout = laid_out(one.setup.layout, one.setup.schedule, padded, ranks, sized, layouts::DType::fp32);
        const layouts::Run all{0, 1, tokens};
        const layouts::KeyCounter keys({&all, 1});
        auto pairs = static_cast<double>(layouts::visible_pairs(padded, {&all, 1}, keys)) / ranks;
        std::vector<int> looked_at{0, (ranks - 1) / 2, ranks - 1};
        if (ranks <= large_ring) {
            looked_at.resize(static_cast<std::size_t>(ranks));
            std::iota(looked_at.begin(), looked_at.end(), 0);
        }
        if (one.setup.schedule.starts_with("ulysses")) looked_at.clear();
        for (const auto rank : looked_at)
            pairs = std::max(pairs, static_cast<double>(layouts::visible_pairs(padded, layout.shard(rank), keys)));
        const auto flops = [&](layouts::Pass pass) {
            return sim::kernel_price(one.machine->machine, pass, problem).cost->flops;
        };
        one.floor_seconds = pairs * static_cast<double>(one.batch * problem.query_heads) *
                            (problem.forward_flop_per_pair() / flops(layouts::Pass::forward) +
                             problem.backward_flop_per_pair() / flops(layouts::Pass::backward));
    } catch (const Error& error) {
        one.verdict = Advised::Verdict::impossible;
        one.reason = error.what();
    }
}

std::vector<Advised> variants(const Question& question, const Advised& one, const layouts::Problem& problem) {
    std::vector<Advised> all;
    if (!question.config.sweep.schedules.empty()) return all;
    for (const auto& schedule : variants_of(one.setup.schedule, one.setup.ranks, problem)) {
        auto& other = all.emplace_back(one);
        other.setup.schedule = schedule;
        other.causes.reset();
    }
    return all;
}

std::vector<Advised> candidates(const Question& question, const AdvisedMachine& machine) {
    const auto& config = question.config;
    const auto gpus = gpus_of(config, machine.machine);
    auto sizes = ring_sizes(config.sweep, gpus);
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    std::vector<Advised> all;
    for (const auto& mask : config.sweep.masks)
        for (const auto ranks : sizes)
            for (const auto tokens : sequence_lengths(config.sweep, gpus, 0)) {
                const auto visible = density(layouts::make_mask(expand_mask(mask, tokens, {}), tokens));
                require(visible > 0, "mask {} hides all keys from all rows; there is nothing to advise on", mask);
                const auto schedules = config.sweep.schedules.empty()
                                           ? schedules_for(config.problem, machine.machine, ranks, visible)
                                           : config.sweep.schedules;
                for (const auto& layout : layouts_for(config.sweep, mask, visible))
                    for (const auto& schedule : schedules) {
                        if (config.sweep.layouts.empty() && !differs(layout, schedule)) continue;
                        Advised one;
                        one.machine = &machine;
                        const auto laid = for_machines({layout}, {machine.given}).front();
                        one.setup = {"", mask, laid, schedule, "", ranks, tokens};
                        one.setup.pad = true;
                        one.density = visible;
                        one.rings = std::max(1, std::min<int>(gpus / ranks, static_cast<int>(config.problem.batch)));
                        one.batch = (config.problem.batch + one.rings - 1) / one.rings;
                        all.push_back(std::move(one));
                    }
            }
    return all;
}

}  // namespace ringlab::experiments
