#include "tests/mistakes/mistakes_of_masks.hpp"

#include "reference/tensors/rounding.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {

Plan broken(const Scene& scene, BrokenSchedule::Break how, std::initializer_list<layouts::Pass> passes) {
    auto plan = scene.plan_under(scene.plan.mask());
    for (const auto pass : passes) {
        auto& schedule = pass == layouts::Pass::forward ? plan.forward : plan.backward;
        schedule = std::make_unique<BrokenSchedule>(std::move(schedule), how);
    }
    return plan;
}

Consequence local_mask(const Scene& scene) {
    return {.results = scene.run(
                broken(scene, BrokenSchedule::Break::local_mask, {layouts::Pass::forward, layouts::Pass::backward}),
                scene.inputs)};
}

std::string documents(std::int64_t tokens, int ranks, bool cut) {
    const auto boundary = [&](std::int64_t sixtieths) {
        auto at = tokens * sixtieths / 60;
        while (ranks > 1 && at % ranks != ranks - 1) ++at;
        return cut ? at / ranks * ranks : at;
    };
    const auto first = boundary(13), second = boundary(35);
    return fmt::format("causal+documents:{},{},{}", first, second - first, tokens - second);
}

Consequence cut_documents(const Scene& scene) {
    const auto tokens = scene.plan.problem.tokens;
    const auto mask = layouts::make_mask(documents(tokens, scene.which.ranks, true), tokens);
    return {.results = scene.run(scene.plan_under(mask), scene.inputs)};
}

Consequence dropped_first_keys(const Scene& scene) {
    const auto& mask = scene.plan.mask();
    auto segments = mask.segments();
    for (auto& segment : segments) segment.sink = 0;
    const layouts::Mask window(mask.name() + " without its sink", mask.tokens(), segments, mask.valid());
    return {.results = scene.run(scene.plan_under(window), scene.inputs)};
}

std::string tail_padding(std::int64_t tokens) { return fmt::format("causal+valid:0-{}", tokens - tokens / 8 - 1); }

Consequence averaged_padding(const Scene& scene) {
    std::int64_t there = 0;
    for (const auto& valid : scene.plan.mask().valid()) there += valid.size();
    const auto& problem = scene.plan.problem;
    auto inputs = scene.inputs;
    for (auto& x : inputs.dout) x *= static_cast<double>(there) / static_cast<double>(problem.tokens);
    inputs.dout = reference::rounded(inputs.dout, problem.dtype);
    return {.results = scene.run(scene.plan_under(scene.plan.mask()), inputs)};
}

}  // namespace ringlab::experiments
