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
    require(config.tokens.empty() || config.tokens_per_rank.empty(),
            "both --tokens and --tokens-per-rank are given; give one of them");
    parse_range(config.trace_ranks, "--trace-ranks");
    parse_range(config.trace_steps, "--trace-steps");
    for (const auto* option : {"trace-runs", "trace-ranks", "trace-steps"})
        require(!config.trace.empty() || !config.given.contains(option),
                "--{} is given, but no trace is written; name its file by --trace", option);
    require(!(config.resume && config.overwrite), "both --resume and --overwrite are given; give one of them");
    require(config.engine == "events" ||
                !(config.disturbs() || config.given.contains("replicas") || config.given.contains("placement")),
            "--engine symmetric plays one undisturbed ring; leave out what says otherwise");
    require(config.engine == "events" || std::ranges::all_of(config.queries, [](auto rows) { return rows == 0; }),
            "--engine symmetric needs a query row for every token; leave out --queries, or take --engine events");
    require(config.engine == "events" || config.compute_model == "rate",
            "--engine symmetric works with --compute-model rate, not {}", config.compute_model);
}

/// Rotary embedding as it was asked for; nothing of it where attention alone is timed.
void settle_rotary(Config& config, const Experiment& experiment) {
    auto& rotary = config.rotary;
    if (!rotary.rotates() && config.given.contains("rotary")) {  // --rotary none, whatever a preset says beside it
        rotary = {};
        return;
    }
    for (const auto* option : {"dims", "first", "pairs", "scaling", "positions"})
        require(rotary.rotates() || !config.given.contains(fmt::format("rotary-{}", option)),
                "--rotary-{} is given, but nothing is rotated; give the base by --rotary", option);
    rotary.pairs = config.rotary_pairs == "half" ? layouts::Rotary::Pairs::half : layouts::Rotary::Pairs::interleaved;
    rotary.positions = config.rotary_positions == "global" ? layouts::Rotary::Positions::global
                                                           : layouts::Rotary::Positions::documents;
    rotary.scaling = layouts::parse_rotary_scaling(config.rotary_scaling);
    if (rotary.rotates() && times_attention_alone(experiment)) {
        rotary = {};
        config.notes.push_back("attention alone is timed: q and k are not rotated (--rotary)");
    }
}

/// A latent as it was asked for; none where K and V are what an experiment is about.
void settle_latent(Config& config, const Experiment& experiment) {
    if (config.latent_spec.empty() || config.latent_spec == "none") return;
    config.latent = layouts::parse_latent(config.latent_spec);
    if (!times_attention_alone(experiment) && !experiment.groups.layer && !experiment.groups.packs) return;
    config.latent = {};
    config.notes.push_back("K and V are taken as given here, not made of a latent (--latent)");
}

/// The arguments, with what was said otherwise in the past put as it is said now.
std::vector<const char*> in_todays_words(int argc, const char* const* argv, std::vector<std::string>& notes) {
    std::vector<const char*> words(argv, argv + argc);
    const auto is = [](const char* text) {
        return [text](const char* word) { return std::string_view(word) == text; };
    };
    auto old = std::ranges::find_if(words, is("--transport=mpi"));
    const auto apart = std::ranges::find_if(words, is("--transport"));
    if (apart != words.end() && std::next(apart) != words.end() && is("mpi")(*std::next(apart)))
        old = words.erase(apart);
    if (old == words.end()) return words;
    *old = "--mpi";
    notes.push_back("--transport mpi is now said --mpi, with every backend");
    return words;
}

/// The file that a layout or mask is read from, as in "file:PATH" and "documents:@PATH+sink:4".
void add_files_of_spec(FileGuard& files, const std::string& what, const std::string& spec) {
    std::istringstream terms(spec);
    for (std::string term; std::getline(terms, term, '+');)
        for (const std::string before_path : {":@", "file:"})
            if (const auto at = term.find(before_path); at != std::string::npos)
                files.reads(what, term.substr(at + before_path.size()));
}

/// Tells `config.files` of everything that the configuration reads.
void guard_reads(Config& config, const Experiment& experiment) {
    for (const auto& layout : config.layouts) add_files_of_spec(config.files, "layout", layout);
    for (const auto& mask : config.masks) add_files_of_spec(config.files, "mask", mask);
    add_files_of_spec(config.files, "placement", config.placement);
    if (experiment.groups.measures)
        for (const auto& input : config.inputs)
            if (!std::filesystem::is_directory(input))  // whose error lists the generators too
                config.files.reads("input", input == "real" ? find_resource("real_attention", "data", ".h5") : input);
    if (!config.measured.empty() && config.measured != all_records) config.files.reads("--measured", config.measured);
    if (!config.cudnn.empty()) {
        config.files.reads("--cudnn", config.cudnn);
        note_read(config.cudnn);
    }
    if (experiment.groups.stacks) config.files.reads("stack", find_resource(config.stack, "stacks", ".stack"));
    if (experiment.groups.packs) config.files.reads("--lengths", find_resource(config.lengths, "data", ".txt"));
    for (const auto& table : config.published)
        config.files.reads("--published", find_resource(table, "published", ".toml"));
    if (experiment.groups.predicts || experiment.groups.plans)
        for (const auto& machine : config.machines)
            config.files.reads("machine file", find_resource(machine, "machines", ".toml"));
}

/// And of everything that it writes, after all that it reads.
void guard_writes(Config& config, const Experiment& experiment) {
    const auto if_there = config.overwrite ? IfThere::replace : IfThere::refuse;
    const bool resumes = config.resume && experiment.output == FileKind::record;
    config.files.writes("--output", config.output, experiment.output, resumes ? IfThere::keep : if_there);
    if (!config.json.empty())
        config.files.writes("--json", config.json, FileKind::advice, resumes ? IfThere::replace : if_there);
    if (!config.trace.empty())
        config.files.writes("--trace", config.trace, FileKind::trace, resumes ? IfThere::replace : if_there);
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
    const auto words = in_todays_words(argc, argv, config.notes);
    options.read_command_line(static_cast<int>(words.size()), words.data());
    if (requests.help) {
        fmt::print("{}\n\n{}\n\n{}\nFor instance:\n  {}\n", experiment.name, experiment.purpose, options.help(),
                   experiment.example);
        return {};
    }
    if (requests.list) {
        print_list();
        return {};
    }
    if (requests.version) {
        fmt::print("{} of Ringlab {}\n", experiment.name, version_text());
        return {};
    }
    const auto config_files = requests.config_files;
    for (const auto& path : config_files) {
        config.files.reads("config file", path);
        options.read_file(path, "config file");
    }
    require(requests.config_files == config_files, "a config file names another by 'config'; give each by --config");
    if (!requests.preset.empty()) {
        const auto preset = find_resource(requests.preset, "presets", ".cfg");
        config.files.reads("config file", preset);
        options.read_file(preset, "preset");
    }

    config.given = options.given();
    // One of the two replaces the other's default.
    if (config.given.contains("tokens") && !config.given.contains("tokens-per-rank")) config.tokens_per_rank.clear();
    if (config.given.contains("tokens-per-rank") && !config.given.contains("tokens")) config.tokens.clear();
    options.require_fits(config.backend);
    check(config);
    settle_rotary(config, experiment);
    settle_latent(config, experiment);
    layouts::validate(config.dropout);
    require(config.dropout.drops() || !config.given.contains("dropout-seed"),
            "--dropout-seed is given, but nothing is dropped out; give the probability by --dropout");
    guard_reads(config, experiment);
    if (experiment.groups.measures) fit_to_inputs(config);
    if (experiment.groups.lists) return config;
    if (!config.given.contains("output") && !config.resume && !config.overwrite) {
        config.default_output = config.output;
        config.output = free_name(config.default_output);
        if (config.output != config.default_output)
            config.notes.push_back(
                fmt::format("'{}' exists and stays as it is; this goes to '{}'", config.default_output, config.output));
    }
    guard_writes(config, experiment);
    config.text = "experiment = " + experiment.name + "\n" + options.text(config.backend);
    return config;
}

}  // namespace ringlab::experiments
