// Do predictions hold? Rings that `throughput` measured, or that others have published, predicted from a machine file
// that was calibrated on none of them, and a score.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/study/study.hpp"
#include "experiments/validation/ablation.hpp"
#include "experiments/validation/explain.hpp"
#include "experiments/validation/published.hpp"
#include "experiments/validation/scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

namespace ringlab::experiments {
namespace {

void add_options(Options& options, Config& config) {
    options
        .add("measured", &config.timing.measured, "FILE",
             "record of throughput, whose rings are predicted. all: the rings of every record that comes with Ringlab, "
             "each with the machine file of its machine")
        .without("--published");
    options
        .add("machines", &config.prediction.machines, "NAME",
             "machine file on which the rings of one record are predicted, by name (see --list) or path")
        .without("those of --measured all");
    options.add("transports", &config.timing.transports, "NAME", "of the rings of one record that are predicted")
        .without("all");
    options
        .add("without", &config.scoring.without, "TERM",
             "score the rings with the whole cost model, and again without each of these terms (sim/README.md); each: "
             "every term in turn")
        .without("the whole model");
    options.add_flag(
        "explain", config.scoring.explain,
        "split the error of each pass among what the rank that ends last does: compute, launches, messages, waiting");
    options
        .add("published", &config.scoring.published, "NAME",
             "tables of published rings, or CSV files of published systems, by name (see --list) or path: predict them")
        .without("none");
}

const Experiment experiment{
    "validate",
    "Predicts rings that throughput measured from machine files, which calibrate makes without any ring: time of a "
    "pass, the\nbusiest rank's compute and the balance of the ranks, once clocks and power are steady. The score is "
    "the mean, the 95th\npercentile and the largest of the relative errors. Beside it stand the errors of naive "
    "guesses from the same durations\n(sum over steps of the larger of compute and transfer, or of both) and the "
    "spread of the measurements. --explain says\nwhich part of a pass owns the error. --published predicts rings that "
    "others have published.",
    "validate --measured throughput.h5 --machines ./this.toml, after throughput --ranks 2 and calibrate --backend cuda "
    "-o this.toml",
    add_options};

Config defaults() {
    Config config;
    config.output.path = "validate.h5";
    return config;
}

/// The rings of published tables, as today's model has them; a run for each system and size.
int study_published(const Config& config, int argc, char** argv) {
    for (const auto& option : config.given)
        require(option == "published" || option == "output" || option == "overwrite",
                "--published {}: the tables decide what is predicted and on which machine; leave out --{}",
                config.scoring.published.front(), option);
    auto provenance = collect_provenance(argc, argv);
    std::vector<PublishedTable> tables;
    for (const auto& name : config.scoring.published) {
        tables.push_back(load_published(name));
        for (const auto& [entry, file] : tables.back().files) provenance.set_file(entry, file);
    }
    const auto record = make_record(experiment, config, std::move(provenance));
    for (auto& table : tables) {
        predict_published(table);
        for (const auto& figure : table.figures) {
            RunWriter run;
            describe_published(run, table, figure);
            record->commit(fmt::format("{}, {} {} {} P={} S={}", table.name, figure.system, figure.mask, figure.passes,
                                       figure.gpus, figure.gpus * figure.tokens_per_gpu),
                           run);
        }
        fmt::print("{}\n", published_text(table));
    }
    record->finish();
    fmt::print("Record: {}\n", record->name());
    return 0;
}

/// What --measured names: a record, scored on the first machine file given, or those that come with Ringlab.
std::vector<ScoredRecord> records_named(const Config& config, const std::string& option) {
    if (config.timing.measured == all_records) return scored_records();
    ScoredRecord record{std::filesystem::path(config.timing.measured).stem().string(), config.timing.measured, "", {}};
    require(config.prediction.machines.size() == 1,
            "{}: give one machine file for the rings of {}, as in --machines {}", option, config.timing.measured,
            "2xh200_calibrated");
    const auto& wanted = config.timing.transports;
    for (const auto& ring : measured_rings(record.path))
        if (wanted.empty() || std::ranges::count(wanted, ring.timed.transport) > 0)
            record.machines[ring.timed.transport] = config.prediction.machines.front();
    require(!record.machines.empty(), "--measured {}: the record has no rings of --transports", config.timing.measured);
    return {std::move(record)};
}

/// What `asked`, such as "--without", says of the rings of records. `study` writes it and returns a text.
int study_records(const Config& config, const std::string& asked, int argc, char** argv,
                  const std::function<std::string(Record&, const std::vector<ScoredRecord>&)>& study) {
    require(!config.timing.measured.empty(), "{}: say which rings: --measured FILE, --measured all or --published NAME",
            experiment.name);
    const bool all = config.timing.measured == all_records;  // each with the machine file of its machine
    for (const auto& option : config.given)
        require("--" + option == asked || option == "measured" || option == "output" || option == "overwrite" ||
                    (!all && (option == "machines" || option == "transports")),
                "{}: the records decide what is predicted{}; leave out --{}", asked, all ? " and on which machine" : "",
                option);
    const auto records = records_named(config, asked);
    auto provenance = collect_provenance(argc, argv);
    for (const auto& record : records) {
        if (!record.why_not.empty()) continue;
        provenance.set_file("measured_" + record.name, record.path);
        for (const auto& [transport, machine] : record.machines)
            provenance.set_file("machine_" + std::filesystem::path(machine).stem().string(),
                                find_resource(machine, "machines", ".toml"));
    }
    const auto scores = make_record(experiment, config, std::move(provenance));
    const auto text = study(*scores, records);
    scores->finish();
    fmt::print("{}\nRecord: {}\n", text, scores->name());
    return 0;
}

int body(Config& config, int argc, char** argv) {
    if (!config.scoring.published.empty()) return study_published(config, argc, argv);
    if (!config.scoring.without.empty()) {
        const auto terms = terms_named(config.scoring.without);
        return study_records(config, "--without", argc, argv,
                             [&](auto& record, const auto& records) { return score_without(record, records, terms); });
    }
    if (config.scoring.explain) return study_records(config, "--explain", argc, argv, explain);
    return study_records(config, "--measured", argc, argv, score_all);
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program(experiment, defaults(), body, argc, argv);
}
