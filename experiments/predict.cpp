// What will it cost? The simulator alone: any machine file, layouts x masks x schedules x ring sizes x sequence
// lengths, up to thousands of ranks.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/memory/memory.hpp"
#include "experiments/options/values.hpp"
#include "experiments/prediction/causes.hpp"
#include "experiments/prediction/execution_traces.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/forecast.hpp"
#include "experiments/study/in_order.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

void add_rings(Options& options, ExecutionConfig& execution) {
    options
        .add("replicas", &execution.replicas, "N",
             "number of data-parallel copies of the ring, side by side on the machine, each with its own sequences")
        .between(1, 1 << 20);
    options.add("placement", &execution.placement, "NAME",
                "which GPUs form a ring: consecutive, strided (every N-th of N replicas), or file:PATH, a file with "
                "the GPU number of each rank, ring by ring. GPUs are numbered host by host");
}

void add_models(Options& options, Config& config) {
    add_machines(options, config.prediction);
    options
        .add("compute-model", &config.prediction.compute_model, "NAME",
             "tiles: list scheduling of work tiles on SMs; rate: FLOP/s, or the time to read K and V if that is "
             "longer, for thousands of ranks")
        .one_of({"tiles", "rate"});
    add_clock(options, config.prediction);
    options
        .add("engine", &config.prediction.engine, "NAME",
             "events: messages and kernels share links, memory and SMs; unshared: each has them to itself, which with "
             "--compute-model rate takes seconds for 16384 ranks that all do as much (zigzag, or a full mask)")
        .one_of({"events", "unshared"});
    add_span_ranks(options, config.prediction);
    add_trace(options, config.trace);
    options
        .add("chakra", &config.trace.chakra, "DIR",
             "write the schedule of every run and pass as Chakra execution traces, which ASTRA-sim plays: "
             "DIR/NAME.GPU.et for each GPU (docs/how-to/traces.md)")
        .without("none")
        .changes_no_result();
}

void add_disturbances(Options& options, Config& config) {
    auto& prediction = config.prediction;
    options
        .add("slow-gpus", &prediction.slow_gpus, "N:FACTOR",
             "number of ranks that compute slowly, drawn anew in each repeat, and how many times longer they compute "
             "(1.2 if left out)")
        .without("none");
    options
        .add("slow-links", &prediction.slow_links, "N:FACTOR",
             "number of ranks whose outgoing messages go over a slow link or port, drawn anew in each repeat, and by "
             "how much its rate is divided (2 if left out)")
        .without("none");
    options
        .add("compute-noise", &prediction.jitter.compute_noise, "X",
             "noise of compute times: standard deviation of their logarithm (0.05: some 5 %); the median stays the "
             "same")
        .between(0, 3);
    options.add("transfer-noise", &prediction.jitter.transfer_noise, "X", "the same for times of messages")
        .between(0, 3);
    options
        .add("start-skew", &prediction.start_skew_us, "US",
             "each rank starts late by up to this many microseconds, drawn uniformly")
        .between(0, 1e9);
    add_repeats(options, config.execution,
                "number of disturbed passes, each drawn anew; their percentiles are shown beside the undisturbed time");
    add_seed(options, config.problem);
}

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_queries(options, config.sweep);
    add_attention(options, config.problem);
    add_sweep(options, config.sweep);
    add_rings(options, config.execution);
    add_policies(options, config.sweep);
    options.section("What it is predicted on");
    add_models(options, config);
    options.section("What disturbs it");
    add_disturbances(options, config);
}

const Experiment experiment{
    "predict",
    "Predicts what schedules cost on described machines, without executing them: time of both passes, "
    "TFLOP/s per GPU,\n"
    "balance, and where the time goes. Two guesses that need no simulator stand beside each prediction. "
    "For thousands of\n"
    "ranks use --compute-model rate, and for the largest rings --engine unshared.",
    "predict --preset llama-3.1-70b --ranks 8 64 --tokens-per-rank 8192 --machines h200_cluster --trace trace.json",
    add_options};

Config defaults() {
    Config config;
    config.problem.heads = "32:8";
    config.problem.head_dim = 128;
    config.sweep.layouts = {"contiguous", "zigzag", "striped"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {8};
    config.sweep.tokens_per_rank = {512, 1024, 2048, 4096, 8192, 16384, 32768};
    config.prediction.machines = {"h200_nvswitch_copy_engine", "h200_nvswitch_nccl"};
    config.problem.arithmetic = "bf16";
    config.prediction.cause_ranks = 16;
    config.execution.repeats = 100;
    config.prediction.jitter.slow_gpu_factor = 1.2;
    config.prediction.jitter.slow_link_factor = 2;
    config.output.path = "predict.h5";
    return config;
}

/// Whether the bound of packed documents is predicted too.
bool has_bound(const Config& config) { return std::ranges::any_of(config.sweep.masks, packs_documents); }

constexpr const char* bound_text =
    "Of bound: the time that the packing's work takes if it is spread evenly over the ranks, no document is cut and\n"
    "messages take no time, over the predicted time.\n";

/// The tables: a line for each predicted pass, and for both where they are disturbed.
class Summary {
public:
    Summary(const Config& config, const Record& record) : config_(config), record_(record) {}

    void add(const std::string& machine, const Case& setup) {
        double seconds = 0;
        std::vector<double> disturbed;
        for (const auto pass : both_passes) {
            const auto of_pass = add(machine, setup, pass, seconds);
            disturbed.resize(of_pass.size());
            for (std::size_t i = 0; i < of_pass.size(); ++i) disturbed[i] += of_pass[i];
        }
        if (!config_.prediction.disturbs()) return;
        start(table_, machine, setup, "both", seconds);
        add_percentiles(disturbed);
        for (const auto* column : {"TFLOP/s/GPU", "balance", "max(c,t) ms", "c+t ms", "memory"})
            table_.cell(column, "-");
        if (has_bound(config_)) table_.cell("of bound", "-");
    }

    std::string text() const { return table_.text(); }
    std::string causes() const { return causes_text(causes_); }

private:
    void start(Table& table, const std::string& machine, const Case& setup, const char* pass, double seconds) const {
        table.start().cell("machine", machine).cell("mask", setup.mask).cell("layout", setup.layout);
        table.cell("schedule", setup.schedule);
        if (!config_.sweep.policies.empty()) table.cell("policy", setup.policy);
        table.cell("P", setup.ranks)
            .cell("tokens", setup.tokens)
            .cell("pass", pass)
            .cell("ms", seconds * 1e3, "{:.4g}");
    }

    void add_percentiles(const std::vector<double>& seconds) {
        for (const auto percent : disturbed_percents)
            table_.cell(fmt::format("{} % ms", percent), seconds.empty() ? NAN : percentile(seconds, percent) * 1e3,
                        "{:.4g}");
    }

    /// Adds the pass to `both`, and returns the times of its disturbed repeats, if any.
    std::vector<double> add(const std::string& machine, const Case& setup, layouts::Pass pass, double& both) {
        const FinishedRun run{record_, setup.name()};
        const auto labels = prediction_labels(machine, pass);
        const auto ending = fmt::format("{}_{}", to_string(pass), machine);
        const auto of = [&](const std::string& name) { return record_.numbers(run.name, "predicted/" + name, labels); };
        const auto guess = [&](const std::string& name) {
            return record_.has(run.name, "predicted/" + name) ? of(name).front() * 1e3 : NAN;
        };
        const auto seconds = run.number("seconds_predicted_" + ending);
        both += seconds;
        if (const auto found = recorded_causes(record_, run.name, labels); !found.empty()) {
            start(causes_, machine, setup, to_string(pass), seconds);
            add_cause_cells(causes_, found, seconds);
        }
        start(table_, machine, setup, to_string(pass), seconds);
        std::vector<double> disturbed;
        if (config_.prediction.disturbs()) add_percentiles(disturbed = of("disturbed_makespan"));
        const auto teraflop = run.number(fmt::format("flop_{}", to_string(pass))) / setup.ranks / 1e12;
        table_.cell("TFLOP/s/GPU", quotient(teraflop, seconds, "{:.0f}"))
            .cell("balance", run.number("balance_predicted_" + ending), "{:.3f}")
            .cell("max(c,t) ms", guess("naive_overlapped"), "{:.4g}")
            .cell("c+t ms", guess("naive_serial"), "{:.4g}")
            .cell("memory", memory_text(static_cast<std::int64_t>(run.number("memory_predicted"))));
        if (has_bound(config_)) table_.cell("of bound", run.number("share_of_bound_" + ending), "{:.3f}");
        return disturbed;
    }

    const Config& config_;
    const Record& record_;
    Table table_, causes_;
};

/// For each machine, how far off predictions on it are.
std::string trust_text(const Config& config, const Predictor& predictor) {
    std::string text;
    for (const auto& [name, file, given, machine] : predictor.descriptions())
        text += trust_line(name, machine, uncertainty_of(machine, name, config.prediction.attend_clock()));
    return text;
}

int body(Config& config, int argc, char** argv) {
    // 1. Machines, cases, record.
    say_notes(config.notes);
    const auto threads =
        config.trace.file.empty() ? threads_of(config.prediction.threads) : 1;  // of a trace the first runs come first
    const auto cases = all_cases(config.sweep, config.prediction.machines, 0);
    Predictor predictor(config);
    Forecast forecast(config);
    forecast.require_ranks_to_predict();
    ExecutionTraces execution_traces(config, predictor);
    for (const auto& setup : cases) {  // refuse now, not midway
        const auto plan = make_plan(setup, problem_from(config.problem));
        forecast.add_predicted(setup, plan, predictor.machines().size(), threads);
        execution_traces.announce(setup, plan);
    }
    forecast.announce();
    // Cases are independent; where they are fewer than threads, the repeats of each have several.
    const auto fit = std::max(1.0, free_memory() / forecast.bytes());
    const auto at_once =
        static_cast<int>(std::min({fit, static_cast<double>(cases.size()), static_cast<double>(threads)}));
    predictor.predict_as_configured(threads / at_once);
    auto provenance = collect_provenance(argc, argv);
    predictor.add_provenance(provenance);
    const auto record = make_record(experiment, config, std::move(provenance));

    // 2. Predict each case that the record lacks.
    std::vector<std::size_t> lacking;
    for (std::size_t i = 0; i < cases.size(); ++i)
        if (!record->has(cases[i].name())) lacking.push_back(i);
    const auto predicted = [&](std::size_t i) {
        const auto& setup = cases[lacking[i]];
        const auto plan = make_plan(setup, problem_from(config.problem));
        RunWriter run;
        describe_case(run, setup, plan);
        const auto figures = predictor.predict(run, setup.name(), plan);
        for (std::size_t figure = 0; has_bound(config) && packs_documents(setup.mask) && figure < figures.size();
             figure += 2) {
            const auto least = least_seconds(setup, problem_from(config.problem),
                                             predictor.descriptions()[figure / 2].machine, predictor.options());
            for (const auto pass : both_passes) {
                const auto at = static_cast<std::size_t>(pass);
                run.attribute(
                    fmt::format("share_of_bound_{}_{}", to_string(pass), figures[figure].machine),
                    least[at] / figures[figure + at].seconds, "1",
                    "time of the packing's work in contiguous shards under seen, shared evenly, links free, over "
                    "seconds_predicted");
            }
        }
        describe_predicted_memory(run, plan, memory_on_gpus(policy_from(setup.policy, plan.problem.dtype)));
        return run;
    };
    {
        Progress progress(lacking.size(), false);
        const auto start = [&](std::size_t i) {
            say_when_interrupted(interrupted_text(*record, cases.size() - lacking.size() + i, cases.size()));
            if (i < lacking.size()) progress.start(cases[lacking[i]].name(), forecast.seconds_of(lacking[i]));
        };
        start(0);
        make_in_parallel(lacking.size(), at_once, predicted, [&](std::size_t i, RunWriter run) {
            record->commit(cases[lacking[i]].name(), run);
            progress.finish();
            start(i + 1);
        });
    }
    record->finish();
    predictor.write_trace();
    for (const auto& setup : cases) execution_traces.write(setup);
    execution_traces.say();

    // 3. The table.
    Summary summary(config, *record);
    for (const auto& machine : predictor.machines())
        for (const auto& setup : cases) summary.add(machine, setup);
    fmt::print(
        "{}\n"
        "Balance: the busiest rank's compute time divided by the mean. max(c,t) and c+t: guesses without a "
        "simulator, the\n"
        "slowest rank's sum over steps of the larger of compute and transfer, and of both.\n"
        "Memory: attention alone, of the rank that needs most, both passes.\n"
        "{}{}\n"
        "{}\n"
        "{}Record: {}\n",
        summary.text(),
        config.prediction.disturbs()
            ? fmt::format("ms: undisturbed. N %: the time below which N % of {} disturbed repeats stay.\n",
                          config.execution.repeats)
            : "",
        has_bound(config) ? bound_text : "", summary.causes(), trust_text(config, predictor), record->name());
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program(experiment, defaults(), body, argc, argv);
}
