// How should a sequence be laid out, and over how many GPUs? Every combination of layout, schedule, ring size and
// machine that may win, ranked by predicted time, with what it holds in memory and where its time goes.

#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/resources.hpp"
#include "experiments/console/run_main.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/planning/advice_report.hpp"
#include "experiments/record/record.hpp"
#include "experiments/record/record_files.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <span>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "advise",
    "Ranks layouts, schedules, ring sizes and machines (a machine file says which transport) by predicted time of a\n"
    "forward and a backward pass of attention, and says what fits, where time is lost and how far to trust it. First\n"
    "one rank of each is played, as if all others did the same; then the simulator has its word on those that may be\n"
    "the best, up to some hundred thousand operations. Rings that are larger are set right by the max-plus recurrence\n"
    "where all ranks do the same. Lengths that a layout does not divide are padded.",
    "advise --preset llama-3.1-70b --tokens 1048576 --gpus 64 --machines h200_cluster --json advice.json",
    {.plans = true, .advises = true}};

constexpr std::size_t table_rows = 12;

Config defaults() {
    Config config;
    config.heads = "32:8";
    config.head_dim = 128;
    config.masks = {"causal"};
    config.tokens = {131072};
    config.machines = {"h200_nvswitch_copy_engine", "h200_nvswitch_nccl"};
    config.keep = {"everything"};
    config.arithmetic = "bf16";
    config.output = "advise.h5";
    return config;
}

void require_one(const char* option, std::size_t count) {
    require(count == 1, "--{} has {} values; advice is for one of them at a time", option, count);
}

std::vector<AdvisedMachine> machines_of(const Config& config) {
    std::vector<AdvisedMachine> machines;
    for (const auto& name : config.machines) {
        const auto file = find_resource(name, "machines", ".toml");
        const auto machine = sim::load_machine(file);
        machines.push_back({std::filesystem::path(file).stem(), file, machine, capacity_of(machine, name, config),
                            uncertainty_of(machine)});
    }
    require(!machines.empty(), "no machine is given; name one by --machines");
    return machines;
}

Provenance provenance_of(const std::vector<AdvisedMachine>& machines, int argc, char** argv) {
    auto provenance = collect_provenance(argc, argv);
    for (const auto& machine : machines) {
        provenance.set_file("machine_" + machine.name, machine.file);
        provenance.set("machine_" + machine.name + "_text", machine.machine.text);
    }
    return provenance;
}

int body(int argc, char** argv) {
    // 1. Configuration, machines.
    const auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    say_notes(*config);
    require_one("masks", config->masks.size());
    require_one("keep", config->keep.size());
    require_one(config->tokens.empty() ? "tokens-per-rank" : "tokens",
                config->tokens.size() + config->tokens_per_rank.size());
    const auto machines = machines_of(*config);

    // 2. Look at every combination; simulate those that may be the best.
    std::optional<Progress> progress;
    Question question{*config, machines};
    question.progress = [&](const std::string& what, std::size_t done, std::size_t all) {
        say_when_interrupted("interrupted; nothing was written");
        if (progress) progress->finish();
        if (!progress) progress.emplace(all + 1, false);
        if (done < all) progress->start(what);
    };
    const auto advice = advise(question);
    progress.reset();

    // 3. The record, JSON, the table.
    Record record(config->output, record_mode(*config), {experiment.name, experiment.purpose, config->text},
                  provenance_of(machines, argc, argv));
    const auto problem = problem_from(*config);
    std::int64_t place = 0;
    for (const auto& one : advice.all) {
        const bool ranked = one.verdict == Advised::Verdict::ranked;
        RunWriter run;
        describe_advised(run, one, problem, ranked ? ++place : 0);
        if (!record.has(one.name())) record.commit(one.name(), run);
    }
    record.finish();
    if (!config->json.empty()) {
        const auto json = advice_json(advice, question);
        replace_file(followed(config->json), std::as_bytes(std::span(json)));
    }
    fmt::print(
        "{}\nMemory: of the fullest GPU. Lost: share of the total on the busiest rank. By: the simulator (events), or "
        "one rank\nas if all did the same, set right over all ranks (recurrence) or not. Record: {}\n",
        advice_text(advice, question, table_rows), config->output);
    if (!config->json.empty()) fmt::print("JSON: {}\n", config->json);
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
