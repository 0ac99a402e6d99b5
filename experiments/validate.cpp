// Do predictions hold? Rings over GPUs, or over processors, measured and predicted from a machine file that was
// calibrated on none of them: sizes x layouts x masks x schedules x transports, forward and backward, and a score.

#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/study.hpp"
#include "experiments/validation/ablation.hpp"
#include "experiments/validation/context_parallel.hpp"
#include "experiments/validation/explain.hpp"
#include "experiments/validation/published.hpp"
#include "experiments/validation/scores.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

namespace ringlab::experiments {
namespace {

/// Which rings it takes: those of records, published ones, or rings that it runs.
void add_rings(Options& options, Config& config) {
    options
        .add("measured", &config.timing.measured, "FILE",
             "record of validate or throughput: predict its rings (of --transports) and run nothing. all: the rings of "
             "every record that comes with Ringlab, each with the machine file of its machine")
        .without("rings are run");
    options
        .add("without", &config.scoring.without, "TERM",
             "with --measured: score the rings with the whole cost model, and again without each of these terms "
             "(sim/README.md); each: every term in turn")
        .without("the whole model");
    options.add_flag("explain", config.scoring.explain,
                     "with --measured: replay each ring with measured times in place of predicted ones, and say which "
                     "part of the cost model owns the error (sim/README.md)");
    options
        .add("published", &config.scoring.published, "NAME",
             "tables of published rings, or CSV files of published systems, by name (see --list) or path: predict them "
             "and run nothing")
        .without("none");
    options
        .add("backend", &config.execution.backend, "NAME",
             "what runs the ranks: cuda (a GPU each) or cpu (a processor of this machine each)")
        .one_of({"cuda", "cpu"});
}

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_heads(options, config.problem);
    add_scores(options, config.problem);
    add_sinks(options, config.problem);
    add_dropout(options, config.problem);
    add_sweep(options, config.sweep);
    options.section("How it is timed, and predicted");
    add_rings(options, config);
    add_machines(options, config.prediction);
    add_timed_rings(options, config, {"copy", "nccl", "mixed", "threads"});
}

const Experiment experiment{
    "validate",
    "Runs rings over GPUs (or, with --backend cpu, over processors) and predicts them from machine "
    "files, which calibrate\n"
    "makes without any ring: time of a pass, the busiest rank's compute and the balance of the ranks, "
    "once clocks and\n"
    "power are steady. The score is the mean, the 95th percentile and the largest of the relative "
    "errors. Beside it stand\n"
    "the errors of naive guesses from the same durations (sum over steps of the larger of compute and "
    "transfer, or of\n"
    "both) and the spread of the measurements. --measured predicts the rings of a record again, "
    "--measured all those of\n"
    "every record that comes with Ringlab. --explain says which part of the cost model owns the error. "
    "--published\n"
    "predicts rings that others have published.",
    "validate --ranks 2 --machines ./this.toml, after calibrate --backend cuda -o this.toml", add_options};

Config defaults() {
    Config config;
    config.problem.heads = "32:8";
    config.problem.head_dim = 128;
    config.sweep.tokens_per_rank = {512, 1024, 2048, 4096, 8192, 16384};
    config.sweep.layouts = {"contiguous", "zigzag", "striped:64"};
    config.sweep.masks = {"causal", "full", "window:4096,0"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {2};
    config.timing.transports = {"copy"};
    config.timing.kernels = {"auto"};
    config.timing.beside = {"none"};
    config.prediction.machines = {"h200_nvswitch_copy_engine"};
    config.execution.backend = "cuda";
    config.problem.arithmetic = "bf16";
    config.execution.repeats = 5;
    config.timing.warm_up_seconds = 0.2;
    config.timing.repeat_seconds = 0.2;
    config.execution.timeout_seconds = 60;
    config.output.path = "validate.h5";
    return config;
}

/// The backend's usual transport where the user names none. Throws Error if it lacks one that is asked for.
void settle_transports(Config& config) {
    const auto known = backend_kind(config.execution)->transports();
    auto& transports = config.timing.transports;
    if (!config.given.contains("transports")) transports = {known.front()};
    for (const auto& transport : transports)
        require(std::ranges::count(known, transport) > 0, "--transports {}: rings of --backend {} have {}", transport,
                config.execution.backend, fmt::join(known, ", "));
}

/// Which rings are predicted, and what measures them: a backend, or an earlier record.
struct Rings {
    std::vector<ThroughputCase> cases;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<RecordedRings> recorded;
    std::vector<std::size_t> places;  ///< of the cases in the record

    void add_provenance(Provenance& provenance) const {
        backend ? backend->add_provenance(provenance) : recorded->add_provenance(provenance);
    }

    /// Empty on processes that are not root.
    RingRun measure(std::size_t i, const Plan& plan, const Config& config) const {
        if (recorded) return recorded->ring(places[i]);
        auto options = timed_options(config.execution, config.timing, config.problem.seed);
        options.transport = cases[i].transport;
        options.kernels = cases[i].kernels;
        return side_by_side(backend->run(plan, cases[i].group(), options));
    }
};

Rings recorded(const Config& config) {
    for (const auto* option : {"layouts", "masks", "schedules", "ranks", "tokens", "tokens-per-rank", "shapes", "heads",
                               "head-dim", "value-dim", "arithmetic", "kernels", "backend"})
        require(!config.given.contains(option),
                "--measured {}: the record decides which rings are predicted; leave out --{}", config.timing.measured,
                option);
    Rings rings;
    rings.recorded = std::make_unique<RecordedRings>(config.timing.measured);
    const auto& all = rings.recorded->cases();
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (config.given.contains("transports") && std::ranges::count(config.timing.transports, all[i].transport) == 0)
            continue;
        rings.cases.push_back(all[i]);
        rings.places.push_back(i);
    }
    require(!rings.cases.empty(), "--measured {}: the record has no such rings", config.timing.measured);
    return rings;
}

Rings rings(const Config& config) {
    if (!config.timing.measured.empty()) return recorded(config);
    Rings rings;
    rings.cases = throughput_cases(config.problem, config.sweep, config.timing);
    std::erase_if(rings.cases, [](const auto& which) { return which.kind != ThroughputCase::Kind::ring; });
    require(!rings.cases.empty(), "validate predicts rings: give --ranks 2 or more");
    rings.backend =
        make_backend(config.execution,
                     {.ranks = config.sweep.ranks, .arithmetic = config.problem.arithmetic, .device_per_rank = true});
    return rings;
}

/// The rings of published tables, as today's model has them; a run for each system and size.
int study_published(const Config& config, int argc, char** argv) {
    for (const auto& option : config.given)
        require(option == "published" || option == "output" || option == "overwrite" || option == "config",
                "--published {}: the tables decide what is predicted and on which machine; leave out --{}",
                config.scoring.published.front(), option);
    auto provenance = collect_provenance(argc, argv);
    std::vector<PublishedTable> tables;
    std::optional<ContextParallelBenchmark> benchmark;
    std::vector<std::pair<std::string, std::vector<ContextParallelRow>>> files;
    for (const auto& name : config.scoring.published) {
        const auto file = published_file(name);
        if (!file.ends_with(".csv")) {
            tables.push_back(load_published(name));
            add_provenance(provenance, tables.back());
            continue;
        }
        if (!benchmark) add_provenance(provenance, benchmark.emplace(load_benchmark("cp_h100")));
        files.emplace_back(std::filesystem::path(file).stem().string(), load_rows(file, *benchmark));
        provenance.set_file("published_" + files.back().first, file);
    }
    const auto record = make_record(experiment, config, std::move(provenance));
    for (const auto& table : tables) {
        const auto figures = predict_published(table);
        for (const auto& figure : figures) {
            RunWriter run;
            describe_published(run, table, figure);
            record->commit(fmt::format("{}, {} S={}", table.name, figure.system, table.ranks * figure.tokens_per_rank),
                           run);
        }
        fmt::print("{}\n", published_text(table, figures));
    }
    for (const auto& [name, rows] : files) {
        const auto figures = predict_rows(rows, load_rows(benchmark->fitted_rows, *benchmark), *benchmark);
        for (const auto& figure : figures) {
            RunWriter run;
            describe_row(run, *benchmark, figure);
            record->commit(fmt::format("{}, {} {} {} P={}", name, figure.row.system, figure.row.mask,
                                       to_string(figure.row.pass), figure.row.gpus),
                           run);
        }
        fmt::print("{}\n", rows_text(name, *benchmark, figures));
    }
    record->finish();
    fmt::print("Record: {}\n", record->name());
    return 0;
}

/// Predicts both passes as they were measured: repeated, with the pause that the program makes.
void predict(RunWriter& run, const ThroughputCase& which, const Plan& plan, const RingRun& ring, Predictor& predictor) {
    for (const auto pass : both_passes) {
        const auto& timeline = ring.of(pass).timeline();
        const auto measured = measured_pass(ring, pass);
        const auto attends = attend_seconds(timeline);
        const auto busiest = *std::max_element(attends.begin(), attends.end());
        run.attribute(fmt::format("compute_measured_{}", to_string(pass)), busiest, "s",
                      "of the busiest rank's attends, in a pass that was traced");
        predictor.predict_repeated(measured.repetition);
        for (std::size_t machine = 0; machine < predictor.machines().size(); ++machine) {
            const auto figures = predictor.predict(run, which.name(), *plan.schedule(pass), machine);
            describe_errors(run, fmt::format("{}_{}", to_string(pass), figures.machine), measured.seconds,
                            figures.seconds, figures.naive_overlapped, figures.naive_serial);
            const auto column = [&](const char* what, double value, const char* description) {
                run.attribute(fmt::format("{}_{}_{}", what, to_string(pass), figures.machine), value, "1", description);
            };
            column("balance_predicted", figures.balance, "the busiest rank's compute over the mean");
            column("error_compute", figures.compute / busiest - 1, "of the predicted compute of the busiest rank");
            column("error_balance", figures.balance - balance_of(attends),
                   "predicted less measured: the busiest rank's compute over the mean");
        }
    }
}

/// What --measured names: a record, scored on the first machine file given, or those that come with Ringlab.
std::vector<ScoredRecord> records_named(const Config& config, const std::string& option) {
    if (config.timing.measured == all_records) return scored_records();
    ScoredRecord record{std::filesystem::path(config.timing.measured).stem().string(), config.timing.measured, "", {}};
    const RecordedRings rings(record.path);
    require(config.given.contains("machines") && config.prediction.machines.size() == 1,
            "{}: give one machine file for the rings of {}, as in --machines {}", option, config.timing.measured,
            "2xh200_calibrated");
    for (const auto& ring : rings.cases())
        if (!config.given.contains("transports") || std::ranges::count(config.timing.transports, ring.transport) > 0)
            record.machines[ring.transport] = config.prediction.machines.front();
    require(!record.machines.empty(), "--measured {}: the record has no rings of --transports", config.timing.measured);
    return {std::move(record)};
}

/// What `asked`, such as "--without", says of the rings of records. `study` writes it and returns a text.
int study_records(const Config& config, const std::string& asked, int argc, char** argv,
                  const std::function<std::string(Record&, const std::vector<ScoredRecord>&, Progress&)>& study) {
    require(!config.timing.measured.empty(), "{}: say which rings, as in --measured all", asked);
    const bool all = config.timing.measured == all_records;  // each with the machine file of its machine
    for (const auto& option : config.given)
        require("--" + option == asked || option == "measured" || option == "output" || option == "overwrite" ||
                    option == "config" || (!all && (option == "machines" || option == "transports")),
                "{}: the records decide what is predicted{}; leave out --{}", asked, all ? " and on which machine" : "",
                option);
    const auto records = records_named(config, asked);
    auto provenance = collect_provenance(argc, argv);
    std::size_t rings = 0;
    for (const auto& record : records) {
        if (!record.why_not.empty()) continue;
        auto left_out = record.left_out;
        left_out.hot &= asked != "--measured all";  // which predicts warm rings too
        rings += RecordedRings(record.path, left_out).cases().size();
        provenance.set_file("measured_" + record.name, record.path);
        for (const auto& [transport, machine] : record.machines)
            provenance.set_file("machine_" + std::filesystem::path(machine).stem().string(),
                                find_resource(machine, "machines", ".toml"));
    }
    const auto scores = make_record(experiment, config, std::move(provenance));
    Progress progress(rings, false);
    const auto text = study(*scores, records, progress);
    scores->finish();
    fmt::print("{}\nRecord: {}\n", text, scores->name());
    return 0;
}

int study(const Config& config, int argc, char** argv) {
    // 1. Find the devices; lay out every case; read the machines; open the record.
    const auto measured = rings(config);
    const auto& cases = measured.cases;
    for (const auto& which : cases) make_plan(which, config.problem);  // refuse now, not midway
    Predictor predictor(config);
    std::unique_ptr<Record> record;
    if (!measured.backend || measured.backend->is_root()) {
        auto provenance = collect_provenance(argc, argv);
        measured.add_provenance(provenance);
        predictor.add_provenance(provenance);
        record = make_record(experiment, config, std::move(provenance));
    }

    // 2. Time and predict each case that the record lacks.
    {
        Progress progress(cases.size(), !record);
        for (std::size_t i = 0; i < cases.size(); ++i) {
            const auto& which = cases[i];
            progress.start(which.name());
            const bool has = record && record->has(which.name());
            if (!(measured.backend ? is_recorded(config.execution, *measured.backend, has) : has)) {
                const auto plan = make_plan(which, config.problem);
                const auto ring = measured.measure(i, plan, config);
                if (record) {
                    RunWriter run;
                    describe_ring(run, which, plan, ring);
                    predict(run, which, plan, ring, predictor);
                    record->commit(which.name(), run);
                }
            }
            progress.finish();
        }
    }

    // 3. The table and the score.
    if (!record) return 0;
    record->finish();
    for (const auto& machine : predictor.machines()) fmt::print("{}\n", score_text(*record, cases, machine));
    fmt::print("Record: {}\n", record->name());
    return 0;
}

int body(Config& config, int argc, char** argv) {
    if (!config.scoring.published.empty()) return study_published(config, argc, argv);
    if (!config.scoring.without.empty()) {
        const auto terms = terms_named(config.scoring.without);
        return study_records(config, "--without", argc, argv, [&](auto& record, const auto& records, auto& progress) {
            return score_without(record, records, terms, progress);
        });
    }
    if (config.scoring.explain) return study_records(config, "--explain", argc, argv, explain);
    if (config.timing.measured == all_records) return study_records(config, "--measured all", argc, argv, score_all);
    if (config.timing.measured.empty()) settle_transports(config);
    return run_in_session(config.execution, config.output.text, argc, argv, [&] { return study(config, argc, argv); });
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program(experiment, defaults(), body, argc, argv);
}
