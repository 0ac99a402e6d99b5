#include "experiments/command_line/command_line.hpp"

#include "experiments/command_line/config_options.hpp"
#include "experiments/command_line/list.hpp"
#include "experiments/config/source.hpp"
#include "experiments/files/files_read.hpp"
#include "experiments/files/record_files.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/inputs/inputs.hpp"
#include "experiments/options/values.hpp"
#include "experiments/record/provenance/provenance.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string_view>

namespace ringlab::experiments {
namespace {

/// Relations between options; each by itself was judged when it was read.
void check(const Config& config) {
    require(config.sweep.tokens.empty() || config.sweep.tokens_per_rank.empty(),
            "both --tokens and --tokens-per-rank are given; give one of them");
    parse_range(config.trace.ranks, "--trace-ranks");
    parse_range(config.trace.steps, "--trace-steps");
    for (const auto* option : {"trace-runs", "trace-ranks", "trace-steps"})
        require(!config.trace.file.empty() || !config.given.contains(option),
                "--{} is given, but no trace is written; name its file by --trace", option);
    require(!(config.output.resume && config.output.overwrite),
            "both --resume and --overwrite are given; give one of them");
    require(
        config.prediction.engine == "events" ||
            !(config.prediction.disturbs() || config.given.contains("replicas") || config.given.contains("placement")),
        "--engine symmetric predicts one undisturbed ring; leave out --replicas, --placement and what "
        "disturbs it");
    require(config.prediction.engine == "events" ||
                std::ranges::all_of(config.sweep.queries, [](auto rows) { return rows == 0; }),
            "--engine symmetric needs a query row for every token; leave out --queries, or take --engine events");
    require(config.prediction.engine == "events" || config.trace.chakra.empty(),
            "--chakra needs the time of every operation, which --engine {} does not give; take --engine events",
            config.prediction.engine);
    require(config.prediction.engine == "events" || config.prediction.compute_model == "rate",
            "--engine symmetric works with --compute-model rate, not {}", config.prediction.compute_model);
}

/// Rotary embedding as it was asked for; nothing of it where attention alone is timed.
void settle_rotary(Config& config, const Experiment& experiment) {
    auto& rotary = config.problem.rotary;
    if (!rotary.rotates() && config.given.contains("rotary")) {  // --rotary none, whatever a preset says beside it
        rotary = {};
        return;
    }
    for (const auto* option : {"dims", "first", "pairs", "scaling", "positions"})
        require(rotary.rotates() || !config.given.contains(fmt::format("rotary-{}", option)),
                "--rotary-{} is given, but nothing is rotated; give the base by --rotary", option);
    rotary.pairs =
        config.problem.rotary_pairs == "half" ? layouts::Rotary::Pairs::half : layouts::Rotary::Pairs::interleaved;
    rotary.positions = config.problem.rotary_positions == "global" ? layouts::Rotary::Positions::global
                                                                   : layouts::Rotary::Positions::documents;
    rotary.scaling = layouts::parse_rotary_scaling(config.problem.rotary_scaling);
    if (rotary.rotates() && times_attention_alone(experiment)) {
        rotary = {};
        config.notes.push_back("attention alone is timed: q and k are not rotated (--rotary)");
    }
}

/// A latent as it was asked for; none where K and V are what an experiment is about.
void settle_latent(Config& config, const Experiment& experiment) {
    if (config.problem.latent_spec.empty() || config.problem.latent_spec == "none") return;
    config.problem.latent = layouts::parse_latent(config.problem.latent_spec);
    if (!times_attention_alone(experiment)) return;
    config.problem.latent = {};
    config.notes.push_back("K and V are taken as given here, not made of a latent (--latent)");
}

/// The file that a layout or mask is read from, as in "file:PATH" and "documents:@PATH+sink:4".
void add_files_of_spec(FileGuard& files, const std::string& what, const std::string& spec) {
    std::istringstream terms(spec);
    for (std::string term; std::getline(terms, term, '+');)
        for (const std::string before_path : {":@", "file:"})
            if (const auto at = term.find(before_path); at != std::string::npos)
                files.reads(what, term.substr(at + before_path.size()));
}

/// Tells `config.output.files` of everything that the configuration reads.
void guard_reads(Config& config, const Experiment& experiment) {
    for (const auto& layout : config.sweep.layouts) add_files_of_spec(config.output.files, "layout", layout);
    for (const auto& mask : config.sweep.masks) add_files_of_spec(config.output.files, "mask", mask);
    add_files_of_spec(config.output.files, "placement", config.execution.placement);
    if (experiment.groups.measures)
        for (const auto& input : config.sweep.inputs)
            if (!std::filesystem::is_directory(input))  // whose error lists the generators too
                config.output.files.reads("input",
                                          input == "real" ? find_resource("real_attention", "data", ".h5") : input);
    if (!config.timing.measured.empty() && config.timing.measured != all_records)
        config.output.files.reads("--measured", config.timing.measured);
    if (!config.timing.cudnn.empty()) {
        config.output.files.reads("--cudnn", config.timing.cudnn);
        note_read(config.timing.cudnn);
    }
    for (const auto& table : config.scoring.published) config.output.files.reads("--published", published_file(table));
    if (experiment.groups.predicts || experiment.groups.plans)
        for (const auto& machine : config.prediction.machines)
            config.output.files.reads("machine file", find_resource(machine, "machines", ".toml"));
}

/// Tells `config.output.files` of everything that the configuration writes, after guard_reads().
void guard_writes(Config& config, const Experiment& experiment) {
    const auto if_there = config.output.overwrite ? IfThere::replace : IfThere::refuse;
    const bool resumes = config.output.resume && experiment.output == FileKind::record;
    config.output.files.writes("--output", config.output.path, experiment.output, resumes ? IfThere::keep : if_there);
    if (!config.advice.json.empty())
        config.output.files.writes("--json", config.advice.json, FileKind::advice,
                                   resumes ? IfThere::replace : if_there);
    if (!config.trace.file.empty())
        config.output.files.writes("--trace", config.trace.file, FileKind::trace,
                                   resumes ? IfThere::replace : if_there);
}

/// "record.h5", or the first of "record-2.h5", "record-3.h5" and so on that is not there.
std::string free_name(const std::string& name) {
    int number = 1;
    while (!is_free(numbered(name, number))) ++number;
    return numbered(name, number).string();
}

}  // namespace

std::optional<Config> parse(const Experiment& experiment, Config config, int argc, const char* const* argv) {
    Requests requests;
    auto options = options_of(config, requests, experiment);
    options.read_command_line(argc, argv);
    if (requests.help) {
        fmt::print("{}\n\n{}\n\n{}\nFor instance:\n  {}\n", experiment.name, experiment.purpose, options.help(),
                   experiment.example);
        return {};
    }
    if (requests.list) {
        print_list();
        return {};
    }
    if (requests.list_machine_keys) {
        print_machine_keys();
        return {};
    }
    if (requests.version) {
        fmt::print("{} of Ringlab {}\n", experiment.name, version_text());
        return {};
    }
    const auto config_files = requests.config_files;
    for (const auto& path : config_files) {
        config.output.files.reads("config file", path);
        options.read_file(path, "config file");
    }
    require(requests.config_files == config_files, "a config file names another by 'config'; give each by --config");
    if (!requests.preset.empty()) {
        const auto preset = find_resource(requests.preset, "presets", ".cfg");
        config.output.files.reads("config file", preset);
        options.read_file(preset, "preset");
    }

    config.given = options.given();
    // One of the two replaces the other's default.
    if (config.given.contains("tokens") && !config.given.contains("tokens-per-rank"))
        config.sweep.tokens_per_rank.clear();
    if (config.given.contains("tokens-per-rank") && !config.given.contains("tokens")) config.sweep.tokens.clear();
    options.require_fits(config.execution.backend);
    check(config);
    settle_rotary(config, experiment);
    settle_latent(config, experiment);
    layouts::validate(config.problem.dropout);
    require(config.problem.dropout.drops() || !config.given.contains("dropout-seed"),
            "--dropout-seed is given, but nothing is dropped out; give the probability by --dropout");
    guard_reads(config, experiment);
    if (experiment.groups.measures) fit_to_inputs(config);
    if (!config.given.contains("output") && !config.output.resume && !config.output.overwrite) {
        config.output.default_path = config.output.path;
        config.output.path = free_name(config.output.default_path);
        if (config.output.path != config.output.default_path)
            config.notes.push_back(fmt::format("'{}' exists and stays as it is; this goes to '{}'",
                                               config.output.default_path, config.output.path));
    }
    guard_writes(config, experiment);
    config.execution.keeps_results = config.judging.judge || !config.output.save_tensors.empty();
    config.output.text = "experiment = " + experiment.name + "\n" + options.text(config.execution.backend);
    return config;
}

}  // namespace ringlab::experiments
