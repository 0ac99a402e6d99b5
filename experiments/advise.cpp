// How should a sequence be laid out, and over how many GPUs? Combinations of layout, schedule, ring size and machine,
// ranked by simulated time, with what they hold in memory and where their time goes.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/planning/advice.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

#include <optional>
#include <span>

namespace ringlab::experiments {
namespace {

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_attention(options, config.problem);
    add_sweep(options, config.sweep);
    options
        .add("gpus", &config.advice.gpus, "N",
             "number of GPUs to spread the batch over: GPUs that one ring does not need compute other sequences")
        .without("the largest of --ranks, or all of the machine")
        .between(0, 1 << 20);
    options.section("What it is predicted on, and must fit");
    add_machines(options, config.prediction);
    add_clock(options, config.prediction);
    add_memory(options, config.memory);
    options.add("json", &config.advice.json, "FILE", "also write the advice as JSON to this file")
        .without("no JSON")
        .changes_no_result();
}

const Experiment experiment{
    "advise",
    "Ranks layouts, schedules, ring sizes and machines (a machine file says which transport) by the predicted time of "
    "a\n"
    "forward and a backward pass of attention. Says what fits into memory, where time goes, and how far off such\n"
    "predictions were. First it plays one rank of each candidate, as if all others did the same. Then it simulates "
    "the\n"
    "candidates that may be among the best, and variants near the best, within a minute. The others are listed apart,\n"
    "as estimates. Unless given, it compares the layouts contiguous, zigzag, striped, striped:64 and balanced, and "
    "all\n"
    "schedules that may win on the machine (never merge and joined-merge), with other numbers of parts and groups near "
    "the\n"
    "best. Lengths that a layout does not divide are padded.",
    "advise --preset llama-3.1-70b --tokens 1048576 --gpus 64 --machines h200_cluster --json advice.json", add_options};

Config defaults() {
    Config config;
    config.problem.heads = "32:8";
    config.problem.head_dim = 128;
    config.sweep.masks = {"causal"};
    config.sweep.tokens = {131072};
    config.prediction.machines = {"h200_nvswitch_copy_engine", "h200_nvswitch_nccl"};
    config.memory.keep = {"everything"};
    config.problem.arithmetic = "bf16";
    config.output.path = "advise.h5";
    return config;
}

void require_one(const char* option, std::size_t count) {
    require(count == 1, "--{} has {} values; give one, because advice is for one at a time", option, count);
}

std::vector<AdvisedMachine> machines_of(const Config& config) {
    std::vector<AdvisedMachine> machines;
    for (auto& device : devices_of(config)) {
        auto uncertainty = uncertainty_of(device.machine, device.name, config.prediction.attend_clock());
        machines.push_back({std::move(device), std::move(uncertainty)});
    }
    return machines;
}

Provenance provenance_of(const std::vector<AdvisedMachine>& machines, int argc, char** argv) {
    auto provenance = collect_provenance(argc, argv);
    for (const auto& machine : machines) add_provenance(provenance, machine);
    return provenance;
}

int body(Config& config, int argc, char** argv) {
    // 1. Machines.
    say_notes(config.notes);
    require_one("masks", config.sweep.masks.size());
    require_one("keep", config.memory.keep.size());
    require_one(config.sweep.tokens.empty() ? "tokens-per-rank" : "tokens",
                config.sweep.tokens.size() + config.sweep.tokens_per_rank.size());
    const auto machines = machines_of(config);

    // 2. Look at every combination; simulate those that may be the best.
    std::optional<Progress> progress;
    Question question{config, machines};
    question.progress = [&](const std::string& what, std::size_t done, std::size_t all) {
        say_when_interrupted("interrupted; nothing was written");
        if (done == 0)
            progress.emplace(all, false);
        else
            progress->finish();
        progress->start(what);
    };
    const auto advice = advise(question);
    progress.reset();

    // 3. The record, JSON, the table.
    const auto record = make_record(experiment, config, provenance_of(machines, argc, argv));
    std::int64_t place = 0;
    for (const auto& one : advice.all) {
        const bool ranked = one.verdict == Advised::Verdict::ranked;
        RunWriter run;
        describe_advised(run, one, ranked ? ++place : 0);
        if (!record->has(one.name())) record->commit(one.name(), run);
    }
    record->finish();
    std::string json_file;
    if (!config.advice.json.empty()) {
        const auto json = advice_json(advice, question);
        json_file = config.output.files.write(config.advice.json, std::as_bytes(std::span(json))).string();
    }
    fmt::print("{}Record: {}\n", advice_text(advice, question), record->name());
    if (!json_file.empty()) fmt::print("JSON: {}\n", json_file);
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program(experiment, defaults(), body, argc, argv);
}
