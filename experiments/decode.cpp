// What does a token cost when the KV cache is sharded over ranks? Sequences grow by a token at a time, or a few; their
// newest rows meet the cache by every schedule: the cache stays and partial results are merged, rows travel around it,
// or the cache itself moves.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/study/decoding.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>

namespace ringlab::experiments {
namespace {

void add_growth(Options& options, Config& config) {
    options.add("sequences", &config.sweep.sequences, "N", "numbers of sequences that grow together").between(1, 4096);
    options
        .add("lengths", &config.decoding.lengths, "NAME",
             "lengths of the sequences before they grow: falling (sequence s of N, counted from 0, has (N-s)/N of "
             "--tokens) or equal (each has --tokens)")
        .one_of({"falling", "equal"});
    options
        .add("rows", &config.sweep.queries, "N",
             "tokens that a step appends to each sequence, and query rows of the sequence: more than 1 as in "
             "speculative decoding. Each row sees the tokens up to its own")
        .between(1, 256);
    options
        .add("steps", &config.decoding.steps, "N",
             "steps, one after another; each appends --rows tokens to each sequence")
        .between(1, 100000);
}

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_growth(options, config);
    add_heads(options, config.problem);
    add_scores(options, config.problem);
    add_sinks(options, config.problem);
    add_seed(options, config.problem);
    options.section("How it is laid out");
    add_layouts(options, config.sweep);
    add_schedules(options, config.sweep);
    add_ranks(options, config.sweep);
    options.section("How it is measured");
    add_backends(options, config.execution);
    add_arithmetic(options, config.problem, {"fp64", "fp32", "bf16", "fp16"});
    add_processes(options, config.execution);
    add_repeats(options, config.execution, "number of measurements of each run");
    add_judge_limit(options, config.judging);
    add_policies(options, config.sweep);
    add_tolerance(options, config.judging);
    options.section("What it is predicted on");
    add_machines(options, config.prediction);
}

const Experiment experiment{
    "decode",
    "Decodes: appends tokens to sequences whose keys and values are sharded over P ranks, as a padded "
    "prefill left them,\n"
    "and attends from the newest tokens to their whole sequence. The owner of a token and its slot follow "
    "from its\n"
    "position, so nothing moves when a sequence grows. Every step is one layer's forward attention. It "
    "is predicted on\n"
    "each machine, executed, measured, and judged against fp64 attention over each sequence alone.",
    "decode --tokens 8Ki 64Ki --layouts zigzag --schedules merge merge:tree pass-q ring all-gather --ranks 2",
    add_options};

Config defaults() {
    Config config;
    config.sweep.inputs = {"normal"};
    config.sweep.tokens = {8192};
    config.problem.heads = "8:2";
    config.problem.head_dim = 64;
    config.sweep.layouts = {"contiguous", "zigzag", "striped"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"merge", "merge:tree", "pass-q", "ring", "all-gather"};
    config.sweep.ranks = {8};
    config.sweep.sequences = {1};
    config.sweep.queries = {1};
    config.problem.arithmetic = "bf16";
    config.prediction.machines = {"h200_nvswitch_copy_engine"};
    config.output.path = "decode.h5";
    return config;
}

constexpr std::size_t judged_here = 3;  // o, o_unrounded, lse

/// What the steps of a case showed.
struct Steps {
    std::vector<RingRun> rings;              // of the last step
    std::vector<double> seconds;             // the slowest rank's, by step and repeat
    std::vector<double> errors, tolerances;  // by step and tensor
    double worst = 0;                        // error over tolerance

    void judge(Decoding& decoding, const layouts::Schedule& forward, int step, bool round_running_output,
               const std::optional<double>& tolerance, const RingRun& ring) {
        const auto& expected = decoding.expected(step);
        const auto allowed =
            tolerance ? uniform_tolerance(*tolerance) : decoding.tolerance(forward, step, round_running_output);
        const reference::Deviation found[judged_here] = {
            reference::deviation("o", ring.outputs.o, expected.o),
            reference::deviation("o_unrounded", ring.o_unrounded, expected.o),
            reference::deviation("lse", ring.outputs.lse, expected.lse)};
        for (std::size_t i = 0; i < judged_here; ++i) {
            errors.push_back(found[i].relative_rms);
            tolerances.push_back(allowed.relative_rms[i]);
            worst = worse(worst, worse(found[i].relative_rms / allowed.relative_rms[i],
                                       found[i].max_to_largest / allowed.max_relative[i]));
        }
    }
};

void describe_steps(RunWriter& run, const Config& config, const Case& setup, const Decoding& decoding,
                    const Steps& steps) {
    run.attribute("sequences", setup.sequences, "1", "that grow together");
    run.attribute("rows_of_sequence", setup.queries, "1", "query rows of each sequence");
    run.attribute("steps", config.decoding.steps, "1",
                  "each appends as many tokens to a sequence as it has query rows");
    run.dataset("decode/length", decoding.lengths(), {{"sequence", setup.sequences}}, "1",
                "tokens of the sequence before the first step");
    run.dataset("decode/seconds", measured(steps.seconds),
                {{"step", config.decoding.steps}, {"decode/repeat", config.execution.repeats}}, "s",
                "the slowest rank's time for the newest tokens' attention");
    if (!config.judging.judge) return;
    run.dimension("decoded", std::vector<std::string>{"o", "o_unrounded", "lse"}, "1", "result that is judged");
    run.dataset(
        "decode/relative_rms", steps.errors, {"step", "decoded"}, "1",
        "norm of the difference from fp64 attention over each sequence alone, over norm of the expected values");
    run.dataset("decode/tolerance", steps.tolerances, {"step", "decoded"}, "1", "what passes");
    run.attribute("error_over_tolerance", steps.worst, "1",
                  "the worst of all steps and results, by norm and by element");
}

/// Large caches take long to make on the host, so devices draw them, where nobody judges results.
Decoding::Values values_of(const Config& config) {
    return config.judging.judge || backend_kind(config.execution)->on_processors() ? Decoding::Values::made
                                                                                   : Decoding::Values::none;
}

/// All steps of one case; nothing on processes that are not root.
std::optional<RunWriter> decode(const Config& config, const Case& setup, Decoding& decoding, Backend& backend,
                                Predictor& predictor) {
    const auto policy = policy_from(setup.policy, problem_from(config.problem).dtype);
    Steps steps;
    const auto values = values_of(config);
    if (values == Decoding::Values::made) decoding.restart();
    for (int step = 0; step < config.decoding.steps; ++step) {
        if (values == Decoding::Values::made) decoding.append(step);
        const auto plan = decoding.plan(setup, step);
        const auto inputs =
            values == Decoding::Values::made ? std::span(&decoding.inputs(), 1) : std::span<const reference::Inputs>();
        steps.rings = backend.run(plan, ring_group(config.execution, setup.ranks),
                                  judged_options(config.execution, policy, inputs, config.execution.repeats));
        if (!backend.is_root()) continue;
        const auto& ring = steps.rings.front();
        for (const auto seconds : slowest(ring.forward.seconds)) steps.seconds.push_back(seconds);
        if (config.judging.judge)
            steps.judge(decoding, *plan.forward, step, policy.running_output_rounded, config.judging.tolerance, ring);
    }
    if (!backend.is_root()) return {};
    RunWriter run;
    const auto plan = decoding.plan(setup, config.decoding.steps - 1);
    describe_case(run, setup, plan);
    describe_measurements(run, steps.rings);
    describe_steps(run, config, setup, decoding, steps);
    const double read = decoding.bytes_read(plan, config.decoding.steps - 1);
    run.attribute("bytes_read", read, "B", "of K and V that rows of the last step see, on the rank that has most");
    if (const auto rate = backend.memory_read_rate()) {
        run.attribute("memory_read_rate", *rate, "B/s",
                      "at which a kernel read the first device's memory, after the passes");
        run.attribute("seconds_bound", read / *rate, "s", "bytes_read at memory_read_rate");
    }
    run.attribute("bytes_between_ranks", bytes_between_ranks(*plan.forward), "B", "of all messages of a step");
    describe_prediction_errors(run, predictor.predict(run, setup.name(), plan), steps.rings);
    describe_execution(run, config.execution, steps.rings);
    return run;
}

/// Refuses at the start what cannot work.
void check(const Config& config, const std::vector<Case>& cases, Forecast& forecast) {
    forecast.require_ranks_to_execute();
    for (auto setup : cases) {
        setup.pad = true;
        const auto room = (setup.tokens + config.decoding.steps * setup.queries) * setup.sequences;
        require(room <= std::int64_t{1} << 30, "{} tokens in {} sequences are more than 2^30", setup.tokens,
                setup.sequences);
        lengths_of(setup.tokens, setup.sequences, config.decoding.lengths);
        auto plan = make_plan(setup, problem_from(config.problem));
        plan.backward.reset();
        forecast.add_executed(setup, plan);
    }
    forecast.announce();
}

std::string table_of(const Config& config, const std::vector<Case>& cases, const Predictor& predictor,
                     const Record& record) {
    Table table;
    for (const auto& setup : cases) {
        const FinishedRun run{record, setup.name()};
        const auto ms = [&](const std::string& header, const std::string& column) {
            table.cell(header, run.number(column) * 1e3, "{:.4g}");
        };
        table.start().cell("tokens", setup.tokens).cell("sequences", setup.sequences).cell("rows", setup.queries);
        table.cell("layout", setup.layout).cell("schedule", setup.schedule);
        table.cell("policy", setup.policy.empty() ? "carry" : setup.policy).cell("P", setup.ranks);
        ms("ms", "seconds_measured_forward");
        ms("attend ms", "compute_measured_forward");
        ms("bound ms", "seconds_bound");
        table.cell("between ranks", run.number("bytes_between_ranks") / 1e6, "{:.4g} MB");
        for (const auto& machine : predictor.machines()) ms(machine + " ms", "seconds_predicted_forward_" + machine);
        table.cell("o",
                   config.judging.judge ? format_error(record.numbers(run.name, "decode/relative_rms").front()) : "-");
        table.cell("error/tolerance", run.number("error_over_tolerance"), "{:.2f}");
    }
    return table.text();
}

int study(Config& config, int argc, char** argv) {
    // 1. Cases, machines, record.
    const auto cases = all_cases(config.sweep, config.prediction.machines, 0);
    Predictor predictor(config);
    Forecast forecast(config);
    check(config, cases, forecast);
    say_notes(config.notes);
    std::unique_ptr<Record> record;
    if (const auto backend = make_backend(config.execution, {{cases.front().ranks}, config.problem.arithmetic});
        backend->is_root()) {
        auto provenance = provenance_of(config, *backend, argc, argv);
        predictor.add_provenance(provenance);
        record = make_record(experiment, config, std::move(provenance));
    }

    // 2. Each case's steps; cases of one length share their tokens.
    std::optional<Decoding> decoding;
    Progress progress(cases.size(), !record);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const auto& setup = cases[i];
        if (record) say_when_interrupted(interrupted_text(*record, i, cases.size()));
        progress.start(setup.name(), forecast.seconds_of(i));
        const auto backend = make_backend(config.execution, {{setup.ranks}, config.problem.arithmetic});
        if (!is_recorded(config.execution, *backend, record && record->has(setup.name()))) {
            if (!decoding || !decoding->is_of(setup))
                decoding.emplace(config.problem, config.decoding, setup, values_of(config));
            const auto run = decode(config, setup, *decoding, *backend, predictor);
            if (record) record->commit(setup.name(), *run);
        }
        progress.finish();
    }
    if (!record) return 0;
    record->finish();

    // 3. The table: one line a case.
    double worst = 0;
    for (const auto& setup : cases)
        if (config.judging.judge) worst = worse(worst, record->number(setup.name(), "error_over_tolerance"));
    fmt::print(
        "{}\nms: measured for a step of all sequences, the slowest rank, median, backend {}; attend ms: the busiest "
        "rank's own\nprocessor or device time in attends; bound ms: K and V read once, by the rank that has most, at "
        "the rate at which a\nkernel then read its device's memory; after a machine's name: predicted. o: relative RMS "
        "of the first step's rows\nagainst fp64; error/tolerance: the worst of all steps, arithmetic {}. {}\n"
        "Record: {}\n",
        table_of(config, cases, predictor, *record), config.execution.backend, config.problem.arithmetic,
        !config.judging.judge ? "Not judged."
        : passes(worst, 1.0)  ? "All pass."
                              : "NOT ALL PASS.",
        record->name());
    return !config.judging.judge || passes(worst, 1.0) ? 0 : 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program_in_session(experiment, defaults(), study, argc, argv);
}
