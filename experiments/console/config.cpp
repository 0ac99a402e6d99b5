#include "experiments/console/config.hpp"

#include "experiments/console/interrupt.hpp"
#include "experiments/console/message.hpp"
#include "experiments/console/options.hpp"
#include "experiments/inputs/inputs.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/record/provenance.hpp"
#include "experiments/record/record_files.hpp"
#include "layouts/names.hpp"
#include "processes/last_word.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

namespace ringlab::experiments {
namespace {

std::string data_directory() {
    if (const char* directory = std::getenv("RINGLAB_DATA")) return directory;
    return RINGLAB_DATA_DIRECTORY;
}

std::string generators() {
    std::string names;
    for (const auto& kind : input_kinds()) names += (names.empty() ? "" : ", ") + kind.name;
    return names;
}

/// What is asked for beside results.
struct Requests {
    bool help = false, list = false, version = false;
    std::vector<std::string> config_files;
    std::string preset;
};

Options describe(Config& config, Requests& requests, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    const bool calibrates = experiment.output == FileKind::machine;
    Options options;

    options.section("What is computed");
    options.add({.name = "tokens",
                 .value = "N",
                 .help = groups.measures ? "tokens of the whole sequence; of a file, the first so many"
                                         : "tokens of the whole sequence",
                 .target = &config.tokens,
                 .absent = !config.tokens_per_rank.empty() ? "--tokens-per-rank says"
                                                           : "as many as the input has; 512 of generated ones",
                 .low = 1});
    options.add({.name = "tokens-per-rank",
                 .value = "N",
                 .help = "instead of --tokens: tokens of each rank",
                 .target = &config.tokens_per_rank,
                 .absent = "--tokens says",
                 .low = 1});
    options.add({.name = "batch", .value = "N", .help = "sequences at a time", .target = &config.batch, .low = 1});
    options.add({.name = "heads",
                 .value = "Q:KV",
                 .help = "query and kv heads, as 32:8; 32 alone is 32:32",
                 .target = &config.heads,
                 .absent = "those of the input; 4:2 for generated ones"});
    options.add({.name = "head-dim",
                 .value = "N",
                 .help = "size of a query or key",
                 .target = &config.head_dim,
                 .absent = "that of the input; 128 for generated ones",
                 .low = 0});
    options.add({.name = "value-dim",
                 .value = "N",
                 .help = "size of a value",
                 .target = &config.value_dim,
                 .absent = "the head dim, or that of the input",
                 .low = 0});
    options.add({.name = "scale",
                 .value = "X",
                 .help = "of q.k",
                 .target = &config.scale,
                 .absent = "that of the input, or 1/sqrt(head dim)"});
    options.add({.name = "soft-cap",
                 .value = "C",
                 .help = "scores s become C*tanh(s/C)",
                 .target = &config.soft_cap,
                 .absent = "that of the input, or none",
                 .low = 0});
    options.add({.name = "preset",
                 .value = "NAME",
                 .help = "sizes of a real model, by name (see --list) or a file like those of --config" +
                         std::string(groups.measures ? "; inputs are then generated, unless --input names some" : ""),
                 .target = &requests.preset,
                 .absent = "none",
                 .decides_results = false});
    if (groups.measures) {
        options.add(
            {.name = "input",
             .value = "NAME",
             .help = fmt::format("real (comes with Ringlab), a generator ({}), or an HDF5 file with q, k, v and "
                                 "perhaps do, each (batch, token, head, dim)",
                                 generators()),
             .target = &config.inputs});
        options.add({.name = "seed", .value = "N", .help = "of the generators", .target = &config.seed, .low = 0});
    }

    options.section("How it is laid out");
    if (!calibrates)
        options.add({.name = "layouts",
                     .value = "NAME",
                     .help = "which rank owns which tokens (see --list)",
                     .target = &config.layouts});
    options.add({.name = "masks",
                 .value = "NAME",
                 .help = "who sees whom (see --list); join terms by +. documents:input takes the input's documents",
                 .target = &config.masks});
    if (!calibrates) {
        options.add({.name = "algorithms",
                     .value = "NAME",
                     .help = "schedules that bring queries and keys together (see --list)",
                     .target = &config.algorithms});
        options.add(
            {.name = "ranks", .value = "P", .help = "ring sizes", .target = &config.ranks, .low = 1, .high = 1 << 20});
        options.add({.name = "pad",
                     .value = "",
                     .help = "round tokens up to what the layout divides; the mask excludes the rest",
                     .target = &config.pad});
    }

    if (groups.measures) options.section("How it is measured");
    if (groups.measures && !calibrates) {
        options.add({.name = "backend",
                     .value = "NAME",
                     .help = "cpu, or cuda (GPUs; bf16 and fp16)",
                     .target = &config.backend});
        options.add({.name = "transport",
                     .value = "NAME",
                     .help =
                         "cpu: threads, or mpi under mpirun. cuda: copy (copy engines, one host), nccl, or loopback "
                         "(ranks take turns on the GPUs there are). auto: threads; copy with a GPU per rank, else "
                         "loopback",
                     .target = &config.transport,
                     .choices = {"auto", "threads", "mpi", "copy", "nccl", "loopback"}});
        options.add({.name = "kernels",
                     .value = "NAME",
                     .help =
                         "with --backend cuda: portable (sm_80 and later), hopper (sm_90a; portable where it has none "
                         "for a pass or head dim), or auto, the fastest that runs",
                     .target = &config.kernels,
                     .choices = {"auto", "portable", "hopper"}});
        options.add({.name = "mpi",
                     .value = "",
                     .help = "with --backend cuda: a process per rank, under mpirun or srun",
                     .target = &config.mpi});
    }
    if (groups.measures)
        options.add({.name = "arithmetic",
                     .value = "NAME",
                     .help = "fp64, fp32, bf16 or fp16; the last two are emulated by the CPU backend",
                     .target = &config.arithmetic,
                     .choices = {"fp64", "fp32", "bf16", "fp16"}});
    if (groups.measures && !calibrates) {
        options.add({.name = "replicas",
                     .value = "N",
                     .help = "data-parallel copies of the ring",
                     .target = &config.replicas,
                     .low = 1,
                     .high = 1024});
        options.add({.name = "placement",
                     .value = "NAME",
                     .help = "global ranks of a replica: consecutive or strided",
                     .target = &config.placement,
                     .choices = {"consecutive", "strided"}});
    }
    if (groups.measures)
        options.add({.name = "repeats",
                     .value = "N",
                     .help = "measurements of each run",
                     .target = &config.repeats,
                     .low = 1,
                     .high = 1000});
    if (groups.measures && !calibrates) {
        options.add({.name = "timeout",
                     .value = "SECONDS",
                     .help = "after which a rank that waits for others gives up",
                     .target = &config.timeout_seconds,
                     .low = 0.001,
                     .high = 1e6});
        options.add({.name = "check-finite",
                     .value = "",
                     .help = "with --backend cuda: end at the first tensor that is not finite and name it; slow",
                     .target = &config.check_finite});
        options.add({.name = "judge-limit",
                     .value = "N",
                     .help = "tokens up to which every element is judged against fp64; above, a sample of rows and "
                             "columns",
                     .target = &config.judge_limit,
                     .low = 0});
    }
    if (groups.predicts && groups.measures)
        options.add({.name = "no-judge",
                     .value = "",
                     .help = "measure times, compare nothing with fp64",
                     .target = &config.judge,
                     .turns_off = true});
    if (groups.policies)
        options.add({.name = "policies",
                     .value = "NAME",
                     .help =
                         "how partial results become one: carry (fp32), partials (bf16), running (bf16 partials and "
                         "running output)",
                     .target = &config.policies,
                     .absent = "carry"});
    if (groups.gate)
        options.add({.name = "tolerance",
                     .value = "X",
                     .help = "largest relative error that passes; above it the exit status is 2",
                     .target = &config.tolerance,
                     .absent = "1e-13 in fp64, what the roundings of other arithmetics leave",
                     .low = 0});

    if (groups.throughput) {
        options.section("How it is timed");
        options.add({.name = "shapes",
                     .value = "SHAPE",
                     .help = "instead of --heads, dims and --arithmetic: HEADS/DIM or HEADS/DIM/ARITHMETIC, as in "
                             "32:8/128, 32:8/192-128 or 16/64/fp16",
                     .target = &config.shapes,
                     .absent = "the one of --heads, dims and --arithmetic"});
        options.add({.name = "arithmetic",
                     .value = "NAME",
                     .help = "bf16 or fp16",
                     .target = &config.arithmetic,
                     .choices = {"bf16", "fp16"}});
        options.add({.name = "kernels",
                     .value = "NAME",
                     .help = "families that are timed: auto (the fastest that runs), portable, hopper",
                     .target = &config.families,
                     .choices = {"auto", "portable", "hopper"}});
        options.add({.name = "transports",
                     .value = "NAME",
                     .help = "of rings: copy (copy engines, one host), nccl",
                     .target = &config.transports,
                     .choices = {"copy", "nccl"}});
        options.add({.name = "beside",
                     .value = "NAME",
                     .help = "what is timed for comparison: work (as much of it on one GPU), ceilings (matrix products "
                             "and links), or none",
                     .target = &config.beside,
                     .choices = {"work", "ceilings", "none"}});
        options.add({.name = "cudnn",
                     .value = "FILE",
                     .help = "libcudnn.so.9 for the baseline",
                     .target = &config.cudnn,
                     .absent = "where the loader finds it"});
        options.add({.name = "deterministic",
                     .value = "",
                     .help = "rings with an ordered dQ",
                     .target = &config.deterministic});
        options.add(
            {.name = "mpi", .value = "", .help = "a process per rank, under mpirun or srun", .target = &config.mpi});
        options.add({.name = "warm-up",
                     .value = "SECONDS",
                     .help = "of device time before each case, and until times are steady",
                     .target = &config.warm_up_seconds,
                     .low = 0,
                     .high = 60});
        options.add({.name = "seconds",
                     .value = "SECONDS",
                     .help = "of device time to measure each pass or kernel for",
                     .target = &config.repeat_seconds,
                     .low = 1e-6,
                     .high = 60});
        options.add({.name = "repeats",
                     .value = "N",
                     .help = "passes of a ring to measure, at least",
                     .target = &config.repeats,
                     .low = 1,
                     .high = 1000});
        options.add({.name = "rounds",
                     .value = "N",
                     .help = "in which kernels alone and baselines take turns",
                     .target = &config.rounds,
                     .low = 1,
                     .high = 100});
        options.add({.name = "timeout",
                     .value = "SECONDS",
                     .help = "after which a rank that waits for others gives up",
                     .target = &config.timeout_seconds,
                     .low = 0.001,
                     .high = 1e6});
    }

    if (groups.predicts) {
        options.section("What it is predicted on");
        options.add({.name = "machines",
                     .value = "NAME",
                     .help = "machine files, by name (see --list) or path; calibrate makes one of this computer",
                     .target = &config.machines});
        options.add({.name = "compute-model",
                     .value = "NAME",
                     .help = "tiles: list-schedule every tile; rate: FLOP/s, for thousands of ranks",
                     .target = &config.compute_model,
                     .choices = {"tiles", "rate"}});
        options.add({.name = "engine",
                     .value = "NAME",
                     .help = "events: the simulator; symmetric: a recurrence for rings in which all ranks do the same "
                             "and share nothing, with the rate model: 16384 ranks in seconds, but only when each ends",
                     .target = &config.engine,
                     .choices = {"events", "symmetric"}});
        options.add({.name = "span-ranks",
                     .value = "N",
                     .help = "most ranks of which the record keeps when each operation is predicted to run",
                     .target = &config.span_ranks,
                     .low = 0});
        options.add({.name = "trace",
                     .value = "FILE",
                     .help = "write a Chrome trace (open it in Perfetto)",
                     .target = &config.trace,
                     .absent = "no trace",
                     .decides_results = false});
        options.add({.name = "trace-runs",
                     .value = "N",
                     .help = "trace only the first so many runs",
                     .target = &config.trace_runs,
                     .low = 1,
                     .decides_results = false});
        options.add({.name = "trace-ranks",
                     .value = "FIRST-LAST",
                     .help = "trace only these ranks",
                     .target = &config.trace_ranks,
                     .absent = "all",
                     .decides_results = false});
        options.add({.name = "trace-steps",
                     .value = "FIRST-LAST",
                     .help = "trace only these steps",
                     .target = &config.trace_steps,
                     .absent = "all",
                     .decides_results = false});
    }

    options.section("Where results go");
    options.add(
        {.name = "output",
         .value = "FILE",
         .help = std::string(calibrates ? "machine file (TOML) that --machines of the others takes" : "record (HDF5)") +
                 "; if this name is not given and taken, the next free one of -2, -3 and so on",
         .target = &config.output,
         .letter = "o",
         .decides_results = false});
    if (!calibrates)
        options.add({.name = "resume",
                     .value = "",
                     .help = "continue a record: do only the runs that it lacks",
                     .target = &config.resume,
                     .decides_results = false});
    options.add({.name = "overwrite",
                 .value = "",
                 .help = calibrates ? "replace a file that exists" : "replace a record that exists",
                 .target = &config.overwrite,
                 .decides_results = false});
    if (groups.measures && !calibrates)
        options.add({.name = "save-tensors",
                     .value = "FOLDER",
                     .help = "for an HDF5 file of inputs and outputs of every run (check one with "
                             "experiments/check_tensors.py)",
                     .target = &config.save_tensors,
                     .absent = "none are saved",
                     .decides_results = false});

    options.section("General");
    options.add({.name = "force",
                 .value = "",
                 .help = "run also what, by an estimate made before, exceeds this computer's memory or a week",
                 .target = &config.force,
                 .decides_results = false});
    options.add({.name = "config",
                 .value = "FILE",
                 .help = "file of 'name = value' lines, several values between blanks; the command line comes first, "
                         "then --config, then --preset",
                 .target = &requests.config_files,
                 .absent = "none",
                 .decides_results = false});
    options.add({.name = "list",
                 .value = "",
                 .help = "show the known layouts, masks, algorithms, inputs, machines and presets",
                 .target = &requests.list,
                 .decides_results = false});
    options.add({.name = "version",
                 .value = "",
                 .help = "show the version",
                 .target = &requests.version,
                 .decides_results = false});
    options.add({.name = "help",
                 .value = "",
                 .help = "show this text",
                 .target = &requests.help,
                 .letter = "h",
                 .decides_results = false});
    return options;
}

template <class Entries>
void print_entries(const char* title, const Entries& entries) {
    constexpr std::size_t column = 38, line = 116;
    fmt::print("{}\n", title);
    for (const auto& [name, entry] : entries)
        fmt::print("  {:<34}  {}\n", entry.usage, wrapped(entry.help, column, line - column));
}

std::vector<std::string> resources(const std::string& folder, const std::string& extension) {
    std::vector<std::string> names;
    std::error_code missing;
    for (const auto& file : std::filesystem::directory_iterator(data_directory() + "/" + folder, missing))
        if (file.path().extension() == extension) names.push_back(file.path().stem());
    std::sort(names.begin(), names.end());
    return names;
}

void print_list() {
    print_entries("Layouts", layouts::layouts().entries());
    print_entries("Masks, joined by +", layouts::masks().entries());
    print_entries("Algorithms", layouts::schedules().entries());
    fmt::print("Inputs\n  {:<34}  {}\n", "real", "Q, K, V and loss gradient of a causal language model, 2048 tokens");
    for (const auto& kind : input_kinds()) fmt::print("  {:<34}  {}\n", kind.name, kind.help);
    fmt::print("Machines\n  {}\n", fmt::join(resources("machines", ".toml"), "\n  "));
    fmt::print("Presets\n  {}\n", fmt::join(resources("presets", ".cfg"), "\n  "));
}

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
    require(config.engine == "events" || config.compute_model == "rate",
            "--engine symmetric works with --compute-model rate, not {}", config.compute_model);
    if (config.backend == "cpu") {
        require(config.transport == "auto" || config.transport == "threads" || config.transport == "mpi",
                "--transport {} is for --backend cuda; with --backend cpu it is threads or mpi", config.transport);
        require(!config.mpi, "--mpi is for --backend cuda; with --backend cpu say --transport mpi");
        require(!config.check_finite, "--check-finite is for --backend cuda");
        require(config.kernels == "auto", "--kernels {} is for --backend cuda", config.kernels);
    }
    if (config.backend == "cuda")
        require(config.transport != "threads" && config.transport != "mpi",
                "--transport {} is for --backend cpu; with --backend cuda it is copy, nccl or loopback, and --mpi asks "
                "for a process per rank",
                config.transport);
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
    if (experiment.groups.measures)
        for (const auto& input : config.inputs)
            if (!std::filesystem::is_directory(input))  // whose error lists the generators too
                config.files.reads("input", input == "real" ? find_resource("real_attention", "data", ".h5") : input);
    if (experiment.groups.predicts)
        for (const auto& machine : config.machines)
            config.files.reads("machine file", find_resource(machine, "machines", ".toml"));
}

/// And of everything that it writes, after all that it reads.
void guard_writes(Config& config, const Experiment& experiment) {
    const auto if_there = config.overwrite ? IfThere::replace : IfThere::refuse;
    const bool resumes = config.resume && experiment.output == FileKind::record;
    config.files.writes("--output", config.output, experiment.output, resumes ? IfThere::keep : if_there);
    if (!config.trace.empty())
        config.files.writes("--trace", config.trace, FileKind::trace, resumes ? IfThere::replace : if_there);
}

/// "record.h5", or the first of "record-2.h5", "record-3.h5" and so on that is not there.
std::string free_name(const std::string& name) {
    const std::filesystem::path path(name);
    std::error_code unknown;
    auto free = path;
    for (int number = 2;
         std::filesystem::exists(free, unknown) || std::filesystem::exists(unfinished_of(free), unknown); ++number)
        free = path.parent_path() / fmt::format("{}-{}{}", path.stem().string(), number, path.extension().string());
    return free.string();
}

}  // namespace

std::optional<Config> parse(const Experiment& experiment, Config config, int argc, const char* const* argv) {
    Requests requests;
    auto options = describe(config, requests, experiment);
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
    check(config);
    guard_reads(config, experiment);
    if (experiment.groups.measures) fit_to_inputs(config);
    if (!config.given.contains("output") && !config.resume && !config.overwrite) {
        const auto taken = config.output;
        config.output = free_name(taken);
        if (config.output != taken)
            config.notes.push_back(
                fmt::format("'{}' exists and stays as it is; this goes to '{}'", taken, config.output));
    }
    guard_writes(config, experiment);
    config.text = "experiment = " + experiment.name + "\n" + options.text();
    return config;
}

void say_notes(const Config& config) {
    for (const auto& note : config.notes) fmt::print(stderr, "[note] {}\n", note);
}

std::string find_resource(const std::string& name, const std::string& folder, const std::string& extension) {
    if (std::filesystem::is_regular_file(name)) return name;
    const auto path = data_directory() + "/" + folder + "/" + name + extension;
    if (std::filesystem::is_regular_file(path)) return path;
    const auto known = resources(folder, extension);
    const auto hint = layouts::did_you_mean(name, known);
    fail("'{}' is neither a file nor one of the known {}{} {}", name, folder,
         hint.empty() ? ":" : hint + " Known:", fmt::join(known, ", "));
}

layouts::Interval parse_range(const std::string& text, const std::string& what) {
    if (text.empty()) return {0, std::numeric_limits<std::int64_t>::max()};
    const auto dash = text.find('-');
    require(dash != std::string::npos, "{} is '{}'; it must be FIRST-LAST, as in 0-7", what, text);
    const auto first = layouts::parse_count(std::string_view(text).substr(0, dash), what, 0);
    const auto last = layouts::parse_count(std::string_view(text).substr(dash + 1), what, first);
    return {first, std::min(last, std::numeric_limits<std::int64_t>::max() - 1) + 1};
}

std::pair<std::int64_t, std::int64_t> parse_heads(const std::string& text) {
    const auto colon = text.find(':');
    const auto query = layouts::parse_count(std::string_view(text).substr(0, colon), "the number of query heads", 1);
    if (colon == std::string::npos) return {query, query};
    return {query, layouts::parse_count(std::string_view(text).substr(colon + 1), "the number of kv heads", 1)};
}

std::size_t parse_choice(const std::string& value, const std::string& what, const std::vector<std::string>& choices) {
    const auto found = std::find(choices.begin(), choices.end(), value);
    if (found == choices.end()) fail("{}", unknown_choice(value, what, choices));
    return static_cast<std::size_t>(found - choices.begin());
}

layouts::RingGroup ring_group(const Config& config, int ranks) {
    using Placement = layouts::RingGroup::Placement;
    return {ranks, config.replicas, config.placement == "consecutive" ? Placement::consecutive : Placement::strided};
}

int run_main(const std::string& name, int (*body)(int, char**), int argc, char** argv) {
    end_on_signals();
    const std::string not_printed = "cannot write to standard output; what is printed is not complete";
    try {
        const int status = body(argc, argv);
        // A full disk or a closed reader shows at the latest when the last of it is written.
        if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
        fmt::print(stderr, "{}: {}\n", name, not_printed);
    } catch (const std::bad_alloc&) {
        processes::say_last(name, "out of memory; fewer tokens, heads or ranks would need less");
    } catch (const std::exception& error) {
        processes::say_last(name, std::ferror(stdout) ? not_printed : shortened(error.what()));
    }
    return 1;
}

}  // namespace ringlab::experiments
