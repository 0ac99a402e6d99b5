// How long a sequence fits? For a model's shape over P devices of a described machine: by layout, schedule and what is
// kept of each layer for the backward pass.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/memory/longest.hpp"
#include "experiments/options/source.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

void add_options(Options& options, Config& config) {
    add_attention(options, config.problem);
    add_sweep(options, config.sweep);
    options.section("What it must fit");
    add_machines(options, config.prediction);
    add_memory(options, config.memory);
    options.add_flag("confirm", config.confirm,
                     "run a forward and a backward pass of each result on the GPUs of this machine, with everything "
                     "that is kept allocated, and say how much memory was left");
}

const Experiment experiment{
    "longest_context",
    "Finds the longest sequence that fits into the memory of P devices, for a model's shape, by layout, "
    "schedule and what\n"
    "is kept of each layer for its backward pass (the rest is computed again). Counts inputs, results, "
    "slots, statistics\n"
    "and work lists of the layer that is computed, what is kept of all layers, and what --resident and "
    "--beside\n"
    "say of the rest of a model. Executes something only with --confirm.",
    "longest_context --preset llama-3.1-8b --layers 32 --ranks 8 64 --machines h200_cluster --resident 20",
    add_options};

Config defaults() {
    Config config;
    config.execution.backend = "cuda";  // of --confirm
    config.problem.heads = "32:8";
    config.problem.head_dim = 128;
    config.sweep.layouts = {"zigzag"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring", "joined-ring", "all-gather", "seen"};
    config.sweep.ranks = {8};
    config.prediction.machines = {"h200_nvswitch_copy_engine"};
    config.memory.keep = {"everything", "output", "kv", "checkpoint"};
    config.problem.arithmetic = "bf16";
    config.output.path = "longest_context.h5";
    return config;
}

/// One search: a line of the table.
struct Search {
    Case setup;
    std::string policy;
    const Device* device;

    std::string name() const {
        return fmt::format("{} {} P={} {} keep {} on {}", setup.mask, setup.layout, setup.ranks, setup.schedule, policy,
                           device->name);
    }
};

void describe(RunWriter& run, const Search& search, const layouts::Problem& problem, const Keeping& keeping, int layers,
              const Longest& found) {
    run.attribute("machine", search.device->name, "1", "machine file");
    run.attribute("mask", search.setup.mask, "1", "who sees whom, as given");
    run.attribute("layout", search.setup.layout, "1", "which rank owns which tokens");
    run.attribute("schedule", search.setup.schedule, "1", "schedule that brings queries and keys together");
    run.attribute("keep", search.policy, "1", "what is kept of a layer until its backward pass");
    run.attribute("computed_again", keeping.again, "1", "in the backward pass, of each layer");
    run.attribute("layers", layers, "1", "attention layers");
    run.attribute("ranks", search.setup.ranks, "1", "ring size P");
    run.attribute("batch", problem.batch, "1", "sequences at a time");
    run.attribute("query_heads", problem.query_heads, "1", "heads of q and o");
    run.attribute("kv_heads", problem.kv_heads, "1", "heads of k and v");
    run.attribute("head_dim", problem.head_dim, "1", "size of a query or key");
    run.attribute("value_dim", problem.value_dim, "1", "size of a value");
    run.attribute("longest_tokens", found.tokens, "1", "of the longest sequence that fits; 0: none does");
    run.attribute("limit", found.limit, "1", "what keeps it from being longer");
    run.attribute("kept_token_bytes", keeping.token_bytes, "B", "kept of a token and layer");
    const auto& need = found.footprint;
    const auto bytes = [&](const char* name, std::int64_t value, const char* description) {
        run.attribute(name, value, "B", description);
    };
    bytes("memory", need.total(), "of the fullest device, of the longest sequence, or of the shortest if none fits");
    bytes("memory_device", search.device->capacity.device, "of one device");
    bytes("memory_inputs", need.pass.inputs, "q, k, v and do of the layer at work");
    bytes("memory_results", need.pass.results, "o, lse, dq, dk and dv of the layer at work, sums too");
    bytes("memory_scratch", need.pass.scratch(), "slots, statistics and work lists of the layer at work");
    bytes("memory_kept", need.kept, "activations of all layers, beside the above");
    bytes("memory_resident", need.resident, "weights and what else lies there all the time");
    bytes("memory_reserved", need.reserved, "what is no tensor");
}

/// Runs what was found where everything else that it counts is taken, and writes how that went.
void describe_confirmation(RunWriter& run, const Search& search, const layouts::Problem& problem, bool with_backward,
                           const Longest& found, Backend& backend) {
    auto setup = search.setup;
    setup.tokens = found.tokens;
    auto plan = make_plan(setup, problem);
    if (!with_backward) plan.backward.reset();
    const auto& need = found.footprint;
    const auto trial = backend.try_memory(plan, need.kept + need.resident);
    run.attribute("confirmed", trial.why_not.empty() ? "ran" : trial.why_not, "1",
                  "one pass of each kind on GPUs, beside what is kept and resident");
    run.attribute("confirmed_left", trial.least_free, "B", "free memory of the fullest device while it ran");
    run.attribute("confirmed_forward", trial.forward_seconds, "s", "forward pass of the slowest rank, not warmed up");
    run.attribute("confirmed_backward", trial.backward_seconds, "s", "backward pass likewise");
}

std::string confirmation_text(const Record& record, const std::string& name) {
    const auto result = record.text(name, "confirmed");
    if (result != "ran") return result;
    const auto left = record.number(name, "confirmed_left");
    return fmt::format("ran, {:.1f} % left", 100 * left / record.number(name, "memory_device"));
}

Table table_of(const Record& record, const std::vector<Search>& searches, bool confirmed) {
    Table table;
    for (const auto& search : searches) {
        const auto name = search.name();
        const auto whole = [&](const char* column) { return static_cast<std::int64_t>(record.number(name, column)); };
        const auto tokens = whole("longest_tokens");
        const auto found = [&](const std::string& text, const char* otherwise) {
            return tokens == 0 ? otherwise : text;
        };
        table.start().cell("machine", search.device->name).cell("mask", search.setup.mask);
        table.cell("layout", search.setup.layout).cell("schedule", search.setup.schedule).cell("P", search.setup.ranks);
        table.cell("kept", search.policy).cell("computed again", record.text(name, "computed_again"));
        table.cell("tokens", found(fmt::format("{}", tokens), "none"));
        table.cell("per GPU", found(fmt::format("{}", tokens / search.setup.ranks), "-"));
        table.cell("memory", memory_text(whole("memory"))).cell("limit", record.text(name, "limit"));
        if (confirmed) table.cell("on GPUs", tokens == 0 ? "-" : confirmation_text(record, name));
    }
    return table;
}

int body(Config& config, int argc, char** argv) {
    // 1. Machines, record.
    say_notes(config.notes);
    const auto devices = devices_of(config);
    const auto problem = problem_from(config.problem);
    std::vector<Search> searches;
    for (const auto& device : devices)
        for (auto setup : all_cases(config.sweep, config.prediction.machines, 1)) {
            setup.tokens = layouts::layout_granularity(setup.layout, setup.ranks);
            make_plan(setup, problem);  // refuse now, not midway
            for (const auto& policy : config.memory.keep) searches.push_back({setup, policy, &device});
        }
    auto provenance = collect_provenance(argc, argv);
    for (const auto& device : devices) add_provenance(provenance, device);
    const auto backend = config.confirm ? make_backend(config.execution, {.ranks = config.sweep.ranks,
                                                                          .arithmetic = config.problem.arithmetic,
                                                                          .device_per_rank = true})
                                        : nullptr;
    if (backend) backend->add_provenance(provenance);
    const auto record = make_record(experiment, config, std::move(provenance));

    // 2. Search each that the record lacks.
    {
        Progress progress(searches.size(), false);
        for (std::size_t i = 0; i < searches.size(); ++i) {
            const auto& search = searches[i];
            say_when_interrupted(interrupted_text(*record, i, searches.size()));
            progress.start(search.name());
            if (!record->has(search.name())) {
                const auto kept = keeping(search.policy, problem, config.memory);
                RunWriter run;
                const auto found = longest_context(search.setup, problem, config.memory, kept, search.device->capacity);
                describe(run, search, problem, kept, config.memory.model_layers, found);
                if (backend && found.tokens > 0)
                    describe_confirmation(run, search, problem, kept.with_backward, found, *backend);
                record->commit(search.name(), run);
            }
            progress.finish();
        }
    }
    record->finish();

    // 3. The table.
    fmt::print(
        "{}\n"
        "Attention of {} layer{}, heads {}:{} of {}, batch {}; memory of the fullest device, of {}.\n"
        "Limit: the largest part of that memory, or what else keeps the sequence from being longer. Record: "
        "{}\n",
        table_of(*record, searches, backend != nullptr).text(), config.memory.model_layers,
        config.memory.model_layers == 1 ? "" : "s", problem.query_heads, problem.kv_heads, problem.head_dim,
        problem.batch, memory_text(devices.front().capacity.device), record->name());
    const auto is_refuted = [&](const Search& search) {
        return record->number(search.name(), "longest_tokens") > 0 && record->text(search.name(), "confirmed") != "ran";
    };
    const auto too_long = backend ? std::ranges::count_if(searches, is_refuted) : 0;
    if (too_long == 0) return 0;
    fmt::print(stderr, "{}: {} of the {} lengths did not run on GPUs; the table says why\n", experiment.name, too_long,
               searches.size());
    return 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program(experiment, defaults(), body, argc, argv);
}
