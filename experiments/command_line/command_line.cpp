#include "experiments/command_line/command_line.hpp"

#include "experiments/command_line/list.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/message.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/files/files_read.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/files/written_file.hpp"
#include "experiments/inputs/inputs.hpp"
#include "experiments/options/options.hpp"
#include "experiments/options/source.hpp"
#include "experiments/options/values.hpp"
#include "experiments/record/provenance.hpp"
#include "processes/watching/first_error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string_view>

namespace ringlab::experiments {
namespace {

/// What is asked for beside results.
struct Requests {
    bool help = false, list = false, list_machine_keys = false, version = false;
    std::string preset;
};

void add_output(Options& options, OutputConfig& output, FileKind kind, bool has_sizes) {
    const bool is_record = kind == FileKind::record;
    options.section("Where results go");
    options
        .add("output", &output.path, "FILE",
             std::string(is_record ? "record (HDF5)" : "machine file (TOML), for --machines of the other programs") +
                 "; without the option, -2, -3 and so on is added if the file exists")
        .short_name("o")
        .changes_no_result();
    if (is_record && has_sizes)  // without sizes there are no cases of which some may be done
        options
            .add_flag("resume", output.resume,
                      "continue a record: do only the runs that it lacks. Refused if a file that was read for it has "
                      "changed")
            .changes_no_result();
    options
        .add_flag("overwrite", output.overwrite,
                  is_record ? "replace a record that exists" : "replace a file that exists")
        .changes_no_result();
}

void add_general(Options& options, Requests& requests, FileKind kind, bool has_sizes) {
    options.section("General");
    if (has_sizes)
        options
            .add("preset", &requests.preset, "NAME",
                 "sizes of a real model, by name (see --list) or as a file of 'name = value' lines. The command line "
                 "overrides it")
            .without("none")
            .changes_no_result();
    options
        .add_flag("list", requests.list,
                  "show all layouts, masks, schedules, inputs, machines and presets, each with a description")
        .changes_no_result();
    if (kind == FileKind::machine)
        options
            .add_flag("list-machine-keys", requests.list_machine_keys,
                      "show every key of a machine file: unit, range, what uses it, and what it is if left out")
            .changes_no_result();
    options.add_flag("version", requests.version, "show the version").changes_no_result();
    options.add_flag("help", requests.help, "show this text").short_name("h").changes_no_result();
}

/// Prints what was asked for beside results; returns whether there was anything.
bool answered(const Requests& requests, const Experiment& experiment, const Options& options) {
    if (requests.help)
        fmt::print("{}\n\n{}\n\n{}\nFor instance:\n  {}\n", experiment.name, experiment.purpose, options.help(),
                   experiment.example);
    else if (requests.list)
        print_list();
    else if (requests.list_machine_keys)
        print_machine_keys();
    else if (requests.version)
        fmt::print("{} of Ringlab {}\n", experiment.name, version_text());
    else
        return false;
    return true;
}

/// Relations between options; each by itself was judged when it was read.
void check(const Config& config) {
    require(config.sweep.tokens.empty() || config.sweep.tokens_per_rank.empty(),
            "both --tokens and --tokens-per-rank are given; give one of them");
    require(!(config.output.resume && config.output.overwrite),
            "both --resume and --overwrite are given; give one of them");
}

/// Reads what was typed as texts.
void settle(Config& config) {
    auto& problem = config.problem;
    problem.rotary = parse_rotary(problem.rotary_spec);
    if (problem.latent_spec != "none" && !problem.latent_spec.empty())
        problem.latent = layouts::parse_latent(problem.latent_spec);
    problem.dropout.seed = problem.seed;
    auto& prediction = config.prediction;
    auto& jitter = prediction.jitter;
    parse_stragglers(prediction.slow_gpus, "--slow-gpus", jitter.slow_gpus, jitter.slow_gpu_factor);
    parse_stragglers(prediction.slow_links, "--slow-links", jitter.slow_links, jitter.slow_link_factor);
    layouts::validate(problem.dropout);
    config.judging.judge = config.judging.judge && config.judging.limit > 0;
    config.execution.keeps_results = config.judging.judge || !config.output.save_tensors.empty();
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
void guard_reads(Config& config) {
    for (const auto& layout : config.sweep.layouts) add_files_of_spec(config.output.files, "layout", layout);
    for (const auto& mask : config.sweep.masks) add_files_of_spec(config.output.files, "mask", mask);
    add_files_of_spec(config.output.files, "placement", config.execution.placement);
    for (const auto& input : config.sweep.inputs)
        if (!std::filesystem::is_directory(input))  // whose error lists the generators too
            config.output.files.reads("input",
                                      input == "real" ? find_resource("real_attention", "data", ".h5") : input);
    if (!config.timing.measured.empty() && config.timing.measured != all_records)
        config.output.files.reads("--measured", config.timing.measured);
    for (const auto& table : config.scoring.published) config.output.files.reads("--published", published_file(table));
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

/// Takes the first free name where the user gave none.
void choose_output(Config& config) {
    auto& output = config.output;
    if (config.given.contains("output") || output.resume || output.overwrite) return;
    const auto free = free_name(output.path).string();
    if (free != output.path)
        config.notes.push_back(fmt::format("'{}' exists and stays as it is; this goes to '{}'", output.path, free));
    output.path = free;
}

}  // namespace

std::optional<Config> parse(const Experiment& experiment, Config config, int argc, const char* const* argv) {
    Requests requests;
    Options options;
    options.section("What is computed");
    experiment.add_options(options, config);
    const bool has_sizes = options.has("heads");
    add_output(options, config.output, experiment.output, has_sizes);
    add_general(options, requests, experiment.output, has_sizes);
    options.read_command_line(argc, argv);
    if (answered(requests, experiment, options)) return {};
    const auto typed = options.given();
    if (!requests.preset.empty()) {
        const auto preset = find_resource(requests.preset, "presets", ".cfg");
        config.output.files.reads("preset", preset);
        for (const auto& name : options.read_file(preset, "preset", {"latent", "rotary"}))
            config.notes.push_back("attention alone is timed, with q, k and v as given: without the preset's " + name);
    }

    config.given = options.given();
    // One of the two replaces the other's default, and what a preset says.
    const auto& said = typed.contains("tokens") || typed.contains("tokens-per-rank") ? typed : config.given;
    if (said.contains("tokens") && !said.contains("tokens-per-rank")) config.sweep.tokens_per_rank.clear();
    if (said.contains("tokens-per-rank") && !said.contains("tokens")) config.sweep.tokens.clear();
    options.require_fits(config.execution.backend);
    check(config);
    settle(config);
    guard_reads(config);
    if (!config.sweep.inputs.empty()) fit_to_inputs(config);
    choose_output(config);
    guard_writes(config, experiment);
    config.output.text = "experiment = " + experiment.name + "\n" + options.text(config.execution.backend);
    return config;
}

int run_program(const Experiment& experiment, const Config& defaults, const Body& body, int argc, char** argv) {
    end_on_signals();
    // NCCL's monitoring service (RAS): its thread counts communicators, and ends the process by an assertion if its
    // count is wrong. For programs alone, not in a process of somebody else who loads a library.
    setenv("NCCL_RAS_ENABLE", "0", 0);
    const std::string not_printed = "cannot write to standard output; what is printed is not complete";
    try {
        const FilesRead account;
        auto config = parse(experiment, defaults, argc, argv);
        const int status = config ? body(*config, argc, argv) : 0;
        // A full disk or a closed reader shows at the latest when the last of it is written.
        if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
        fmt::print(stderr, "{}: {}\n", experiment.name, not_printed);
    } catch (const std::bad_alloc&) {
        processes::say_first_error(experiment.name, "out of memory; fewer tokens, heads or ranks would need less");
    } catch (const std::exception& error) {
        processes::say_first_error(experiment.name, std::ferror(stdout) ? not_printed : shortened(error.what()));
    }
    return 1;
}

int run_program_in_session(const Experiment& experiment, const Config& defaults, const Body& body, int argc,
                           char** argv) {
    const auto in_session = [&](Config& config, int count, char** words) {
        return run_in_session(config.execution, config.output.text, count, words,
                              [&] { return body(config, count, words); });
    };
    return run_program(experiment, defaults, in_session, argc, argv);
}

}  // namespace ringlab::experiments
