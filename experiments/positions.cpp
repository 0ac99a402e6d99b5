// Which tokens does a rank own, in what order, and by what positions are they rotated? What a training code needs to
// lay out its own tensors as a schedule here expects them.

#include "experiments/command_line/command_line.hpp"
#include "experiments/config/case.hpp"
#include "experiments/config/source.hpp"
#include "experiments/main/run_main.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "positions",
    "Prints the tokens that each rank owns, in its own order, as CSV on standard output: rank, index in "
    "the rank, token in\n"
    "the sequence, and the position by which rotary embedding rotates its query and key. In Python:\n"
    "numpy.genfromtxt(FILE, delimiter=\",\", names=True, dtype=int)[\"token\"].",
    "positions --layouts zigzag --masks causal+documents:300,212 --rotary-positions documents --tokens 512 --ranks 4",
    {.lists = true}};

Config defaults() {
    Config config;
    config.sweep.layouts = {"zigzag"};
    config.sweep.masks = {"causal"};
    config.sweep.ranks = {8};
    config.sweep.tokens = {512};
    config.problem.arithmetic = "bf16";
    config.sweep.schedules = {"ring"};
    return config;
}

template <class Values>
void require_one(const Values& values, const char* option) {
    require(values.size() == 1, "{} has {} values; give one", option, values.size());
}

int body(int argc, char** argv) {
    // 1. Configuration: one case.
    const auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    require_one(config->sweep.layouts, "--layouts");
    require_one(config->sweep.masks, "--masks");
    require_one(config->sweep.ranks, "--ranks");
    const auto cases = all_cases(config->sweep, config->prediction.machines, 0);
    require_one(cases, config->sweep.tokens.empty() ? "--tokens-per-rank" : "--tokens");
    auto ranks = config->listed_ranks;
    for (int rank = 0; rank < config->sweep.ranks[0] && config->listed_ranks.empty(); ++rank) ranks.push_back(rank);
    for (const auto rank : ranks)
        require(rank < config->sweep.ranks[0], "--rank is {}; of {} ranks the last is {}", rank, config->sweep.ranks[0],
                config->sweep.ranks[0] - 1);
    say_notes(config->notes);

    // 2. Layout and mask, as all experiments make them.
    const auto plan = make_plan(cases[0], problem_from(config->problem));

    // 3. A line for each token.
    fmt::print("rank,index,token,position\n");
    for (const auto rank : ranks) {
        const auto tokens = plan.layout().positions(rank);
        const auto positions = rotary_positions(plan.problem.rotary, plan.mask(), tokens);
        for (std::size_t i = 0; i < tokens.size(); ++i) fmt::print("{},{},{},{}\n", rank, i, tokens[i], positions[i]);
    }
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
