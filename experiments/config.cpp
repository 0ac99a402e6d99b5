#include "experiments/config.hpp"

#include "experiments/message.hpp"
#include "processes/last_word.hpp"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <boost/program_options.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <set>
#include <sstream>

namespace po = boost::program_options;

namespace ringlab::experiments {
namespace {

// Options that say where results go or how the run is watched, not what they are.
const std::set<std::string> not_part_of_results{"help",        "list",        "config",     "preset",
                                                "output",      "resume",      "overwrite",  "trace",
                                                "trace-ranks", "trace-steps", "trace-runs", "save-tensors"};

std::string data_directory() {
    if (const char* directory = std::getenv("RINGLAB_DATA")) return directory;
    return RINGLAB_DATA_DIRECTORY;
}

po::options_description describe(Config& config, const OptionGroups& groups) {
    constexpr unsigned line_length = 110, description_length = 70;
    const auto section = [](const char* title) {
        return po::options_description(title, line_length, description_length);
    };
    const auto list = [](std::vector<std::string>& target) { return po::value(&target)->multitoken()->composing(); };

    auto what = section("What is computed");
    what.add_options()                                                                                             //
        ("tokens", po::value(&config.tokens)->multitoken(), "tokens of the whole sequence; several make a sweep")  //
        ("tokens-per-rank", po::value(&config.tokens_per_rank)->multitoken(),
         "instead of --tokens: tokens of each rank")("batch", po::value(&config.batch)->default_value(config.batch),
                                                     "sequences at a time")                              //
        ("heads", po::value(&config.heads)->default_value(config.heads), "query and kv heads, as 32:8")  //
        ("head-dim", po::value(&config.head_dim)->default_value(config.head_dim),
         "size of a query or key; 0: the input's")  //
        ("value-dim", po::value(&config.value_dim)->default_value(config.value_dim),
         "size of a value; 0: the head dim")                                                             //
        ("scale", po::value(&config.scale)->default_value(config.scale), "of q.k; 0: 1/sqrt(head dim)")  //
        ("soft-cap", po::value(&config.soft_cap)->default_value(config.soft_cap),
         "c: scores become c*tanh(s/c); 0: none")  //
        ("preset", po::value<std::string>(), "sizes of a real model, by name (see --list) or a config file");
    if (groups.measures)
        what.add_options()  //
            ("input", list(config.inputs),
             "real (comes with Ringlab), a generator (normal, outlier, sink, offset) or an HDF5 file with q, k, v, "
             "do")  //
            ("seed", po::value(&config.seed)->default_value(config.seed), "of the generators");

    auto how = section("How it is laid out");
    how.add_options()                                                                                                 //
        ("layouts", list(config.layouts), "which rank owns which tokens")                                             //
        ("masks", list(config.masks), "who sees whom; join terms by +. documents:input takes the input's documents")  //
        ("algorithms", list(config.algorithms), "schedules that bring queries and keys together")                     //
        ("ranks", po::value(&config.ranks)->multitoken(), "ring sizes P")                                             //
        ("pad", po::bool_switch(&config.pad), "round tokens up to what the layout divides; the mask excludes the rest");

    auto measure = section("How it is measured");
    measure.add_options()  //
        ("backend", po::value(&config.backend)->default_value(config.backend),
         "cpu, or cuda (GPUs; bf16 and fp16)")  //
        ("transport", po::value(&config.transport)->default_value(config.transport),
         "cpu: threads, or mpi under mpirun. cuda: copy (copy engines, one host), nccl, or loopback (ranks take turns "
         "on the GPUs there are). auto: threads; copy with a GPU per rank, else loopback")  //
        ("kernels", po::value(&config.kernels)->default_value(config.kernels),
         "with --backend cuda: portable (sm_80 and later), hopper (sm_90a; portable where it has none for a pass or "
         "head dim), or auto, the fastest that runs")                                                           //
        ("mpi", po::bool_switch(&config.mpi), "with --backend cuda: a process per rank, under mpirun or srun")  //
        ("arithmetic", po::value(&config.arithmetic)->default_value(config.arithmetic),
         "fp64, fp32, or bf16 or fp16 (emulated by cpu)")  //
        ("replicas", po::value(&config.replicas)->default_value(config.replicas),
         "data-parallel copies of the ring")  //
        ("placement", po::value(&config.placement)->default_value(config.placement),
         "global ranks of a replica: consecutive or strided")                                               //
        ("repeats", po::value(&config.repeats)->default_value(config.repeats), "measurements of each run")  //
        ("timeout", po::value(&config.timeout_seconds)->default_value(config.timeout_seconds),
         "seconds after which a rank that waits gives up")  //
        ("check-finite", po::bool_switch(&config.check_finite),
         "with --backend cuda: end at the first tensor that is not finite and name it; slow")  //
        ("judge-limit", po::value(&config.judge_limit)->default_value(config.judge_limit),
         "tokens up to which every element is judged against fp64; above, a sample of rows and columns");
    if (groups.predicts)
        measure.add_options()("no-judge", po::bool_switch(), "measure times, compare nothing with fp64");
    if (groups.policies)
        measure.add_options()  //
            ("policies", list(config.policies),
             "how partial results become one: carry (fp32), partials (bf16), running (bf16 partials and running "
             "output)");
    if (groups.gate)
        measure.add_options()  //
            ("tolerance", po::value<double>(),
             "largest relative error that passes, above it the exit status is 2; without it, 1e-13 in fp64 and bounds "
             "from the roundings of other arithmetics");

    auto time = section("How it is timed");
    time.add_options()  //
        ("shapes", list(config.shapes),
         "instead of --heads, dims and --arithmetic: several HEADS/DIM or HEADS/DIM/ARITHMETIC, as in 32:8/128, "
         "32:8/192-128 or 16/64/fp16")                                                                   //
        ("arithmetic", po::value(&config.arithmetic)->default_value(config.arithmetic), "bf16 or fp16")  //
        ("transports", list(config.transports), "of rings: copy (copy engines, one host), nccl")         //
        ("beside", list(config.beside),
         "what is timed for comparison: work (as much of it on one GPU), ceilings (matrix products and links), or "
         "none")  //
        ("cudnn", po::value(&config.cudnn)->default_value(config.cudnn),
         "path of libcudnn.so.9 for the baseline; empty: where the loader finds it")           //
        ("deterministic", po::bool_switch(&config.deterministic), "rings with an ordered dQ")  //
        ("mpi", po::bool_switch(&config.mpi), "a process per rank, under mpirun or srun")      //
        ("warm-up", po::value(&config.warm_up_seconds)->default_value(config.warm_up_seconds),
         "seconds of device time before each case, and until times are steady")  //
        ("seconds", po::value(&config.repeat_seconds)->default_value(config.repeat_seconds),
         "of device time to measure each pass or kernel for")  //
        ("repeats", po::value(&config.repeats)->default_value(config.repeats),
         "passes of a ring to measure, at least")  //
        ("rounds", po::value(&config.rounds)->default_value(config.rounds),
         "in which kernels alone and baselines take turns")  //
        ("timeout", po::value(&config.timeout_seconds)->default_value(config.timeout_seconds),
         "seconds after which a rank that waits gives up");

    auto predict = section("What it is predicted on");
    predict.add_options()                                                                   //
        ("machines", list(config.machines), "machine files, by name (see --list) or path")  //
        ("compute-model", po::value(&config.compute_model)->default_value(config.compute_model),
         "tiles: list-schedule every tile; rate: FLOP/s, for thousands of ranks")  //
        ("engine", po::value(&config.engine)->default_value(config.engine),
         "events: the simulator; symmetric: a recurrence for rings in which all ranks do the same and share nothing, "
         "with the "
         "rate model: 16384 ranks in seconds, but only when each ends")  //
        ("trace", po::value(&config.trace)->default_value(config.trace),
         "write a Chrome trace (open it in Perfetto)")                                                             //
        ("trace-runs", po::value(&config.trace_runs)->default_value(config.trace_runs), "only of the first runs")  //
        ("trace-ranks", po::value(&config.trace_ranks)->default_value(config.trace_ranks),
         "only of ranks FIRST-LAST")  //
        ("trace-steps", po::value(&config.trace_steps)->default_value(config.trace_steps), "only of steps FIRST-LAST");

    auto where = section("Where results go");
    where.add_options()                                                                                   //
        ("output,o", po::value(&config.output)->default_value(config.output), "HDF5 record")              //
        ("resume", po::bool_switch(&config.resume), "continue a record: do only the runs that it lacks")  //
        ("overwrite", po::bool_switch(&config.overwrite), "replace a record that exists");
    if (groups.measures)
        where.add_options()(
            "save-tensors", po::value(&config.save_tensors)->default_value(config.save_tensors),
            "folder for an HDF5 file of inputs and outputs of every run (check one with experiments/check_tensors.py)");

    auto general = section("General");
    general.add_options()                                                       //
        ("help,h", "this text")                                                 //
        ("list", "the known layouts, masks, algorithms, machines and presets")  //
        ("config", po::value<std::vector<std::string>>()->composing(), "file of 'name = value' lines");

    po::options_description all;
    all.add(what).add(how);
    if (groups.measures) all.add(measure);
    if (groups.throughput) all.add(time);
    if (groups.predicts) all.add(predict);
    all.add(where).add(general);
    return all;
}

template <class Entries>
void print_entries(const char* title, const Entries& entries) {
    fmt::print("{}\n", title);
    for (const auto& [name, entry] : entries) fmt::print("  {:<34} {}\n", entry.usage, entry.help);
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
    fmt::print("Machines\n  {}\n", fmt::join(resources("machines", ".toml"), "\n  "));
    fmt::print("Presets\n  {}\n", fmt::join(resources("presets", ".cfg"), "\n  "));
}

/// Several values on one line of a config file come as one string; commas are part of specs, blanks are not.
void split_at_blanks(std::vector<std::string>& values) {
    std::vector<std::string> split;
    for (const auto& value : values) {
        std::istringstream words(value);
        for (std::string word; words >> word;) split.push_back(word);
    }
    values = std::move(split);
}

std::string as_text(const po::variable_value& value) {
    const auto& any = value.value();
    if (const auto* text = boost::any_cast<std::string>(&any)) return *text;
    if (const auto* number = boost::any_cast<std::int64_t>(&any)) return std::to_string(*number);
    if (const auto* number = boost::any_cast<std::uint64_t>(&any)) return std::to_string(*number);
    if (const auto* number = boost::any_cast<int>(&any)) return std::to_string(*number);
    if (const auto* number = boost::any_cast<double>(&any)) return fmt::format("{}", *number);
    if (const auto* flag = boost::any_cast<bool>(&any)) return *flag ? "true" : "false";
    if (const auto* list = boost::any_cast<std::vector<std::string>>(&any))
        return fmt::format("{}", fmt::join(*list, " "));
    if (const auto* list = boost::any_cast<std::vector<std::int64_t>>(&any))
        return fmt::format("{}", fmt::join(*list, " "));
    if (const auto* list = boost::any_cast<std::vector<int>>(&any)) return fmt::format("{}", fmt::join(*list, " "));
    return "?";
}

void read_config_file(const std::string& path, const po::options_description& options, po::variables_map& values,
                      FileGuard& files) {
    files.reads("config file", path);
    std::ifstream file(path);
    require(file.good() && !std::filesystem::is_directory(path), "cannot read config file '{}'", path);
    try {
        po::store(po::parse_config_file(file, options), values);
    } catch (const po::error& error) {
        fail("config file '{}': {}", path, error.what());
    }
}

void check(const Config& config) {
    for (const auto tokens : config.tokens) require(tokens > 0, "--tokens {}: must be at least 1", tokens);
    for (const auto tokens : config.tokens_per_rank)
        require(tokens > 0, "--tokens-per-rank {}: must be at least 1", tokens);
    require(config.tokens.empty() || config.tokens_per_rank.empty(),
            "both --tokens and --tokens-per-rank are given; give one of them");
    for (const auto ranks : config.ranks)
        require(ranks >= 1 && ranks <= 1 << 20, "--ranks {}: must be between 1 and {}", ranks, 1 << 20);
    require(config.batch >= 1, "--batch {}: must be at least 1", config.batch);
    require(config.head_dim >= 0, "--head-dim {}: must be at least 1, or 0 for the input's", config.head_dim);
    require(config.value_dim >= 0, "--value-dim {}: must be at least 1, or 0 for the head dim", config.value_dim);
    require(config.seed <= std::numeric_limits<std::int64_t>::max(), "--seed {}: must be between 0 and 2^63 - 1",
            static_cast<std::int64_t>(config.seed));
    require(config.judge_limit >= 0, "--judge-limit {}: must be at least 0", config.judge_limit);
    require(config.tolerance.value_or(0) >= 0, "--tolerance {}: must be at least 0", config.tolerance.value_or(0));
    require(config.trace_runs >= 1, "--trace-runs {}: must be at least 1", config.trace_runs);
    parse_range(config.trace_ranks, "--trace-ranks");
    parse_range(config.trace_steps, "--trace-steps");
    require(config.repeats >= 1 && config.repeats <= 1000, "--repeats {}: must be between 1 and 1000", config.repeats);
    require(config.replicas >= 1 && config.replicas <= 1024, "--replicas {}: must be between 1 and 1024",
            config.replicas);
    require(config.timeout_seconds > 0 && config.timeout_seconds < 1e6, "--timeout {}: must be above 0 seconds",
            config.timeout_seconds);
    require(config.warm_up_seconds >= 0 && config.warm_up_seconds <= 60,
            "--warm-up {}: must be between 0 and 60 seconds", config.warm_up_seconds);
    require(config.repeat_seconds > 0 && config.repeat_seconds <= 60, "--seconds {}: must be above 0, at most 60",
            config.repeat_seconds);
    require(config.rounds >= 1 && config.rounds <= 100, "--rounds {}: must be between 1 and 100", config.rounds);
    for (const auto& transport : config.transports) parse_choice(transport, "--transports", {"copy", "nccl"});
    for (const auto& family : config.families) parse_choice(family, "--kernels", {"auto", "portable", "hopper"});
    for (const auto& what : config.beside) parse_choice(what, "--beside", {"work", "ceilings", "none"});
    require(!config.output.empty(), "--output is empty; name the HDF5 file for the record");
    require(!(config.resume && config.overwrite), "both --resume and --overwrite are given; give one of them");
    parse_choice(config.placement, "--placement", {"consecutive", "strided"});
    parse_choice(config.compute_model, "--compute-model", {"tiles", "rate"});
    parse_choice(config.engine, "--engine", {"events", "symmetric"});
    require(config.engine == "events" || config.compute_model == "rate",
            "--engine symmetric works with --compute-model rate, not {}", config.compute_model);
    parse_choice(config.transport, "--transport", {"auto", "threads", "mpi", "copy", "nccl", "loopback"});
    parse_choice(config.kernels, "--kernels", {"auto", "portable", "hopper"});
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

/// Tells `config.files` of everything that the configuration names, what is read before what is written.
void guard_files(Config& config, const Experiment& experiment) {
    for (const auto& layout : config.layouts) add_files_of_spec(config.files, "layout", layout);
    for (const auto& mask : config.masks) add_files_of_spec(config.files, "mask", mask);
    if (experiment.groups.measures)
        for (const auto& input : config.inputs)
            if (!std::filesystem::is_directory(input))  // whose error lists the generators too
                config.files.reads("input", input == "real" ? find_resource("real_attention", "data", ".h5") : input);
    if (experiment.groups.predicts)
        for (const auto& machine : config.machines)
            config.files.reads("machine file", find_resource(machine, "machines", ".toml"));

    const auto if_there = config.overwrite ? IfThere::replace : IfThere::refuse;
    const bool resumes = config.resume && experiment.output == FileKind::record;
    config.files.writes("--output", config.output, experiment.output, resumes ? IfThere::keep : if_there);
    if (!config.trace.empty())
        config.files.writes("--trace", config.trace, FileKind::trace, resumes ? IfThere::replace : if_there);
}

}  // namespace

std::optional<Config> parse(const Experiment& experiment, Config config, int argc, const char* const* argv) {
    auto defaults = config;
    // Lists given by the user replace the defaults rather than add to them.
    for (auto* list : {&config.inputs, &config.layouts, &config.masks, &config.algorithms, &config.policies,
                       &config.machines, &config.transports, &config.families, &config.beside})
        list->clear();
    config.ranks.clear();
    config.tokens.clear();
    config.tokens_per_rank.clear();

    const auto options = describe(config, experiment.groups);
    po::variables_map values;
    try {
        const auto parsed = po::command_line_parser(argc, argv)
                                .options(options)
                                .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
                                .run();
        for (const auto& option : parsed.options)
            require(option.position_key == -1, "'{}' does not belong to an option; --help shows the options",
                    fmt::join(option.value, " "));
        po::store(parsed, values);
    } catch (const po::error& error) {
        fail("{}; --help shows the options", error.what());
    }
    if (values.count("help")) {
        fmt::print("{}\n\n{}\n", experiment.name, experiment.purpose);
        std::cout << options;
        fmt::print("\nLists may be given as several words: --ranks 2 4 8. For instance:\n  {}\n", experiment.example);
        return {};
    }
    if (values.count("list")) {
        print_list();
        return {};
    }
    if (values.count("config"))
        for (const auto& path : values["config"].as<std::vector<std::string>>())
            read_config_file(path, options, values, config.files);
    if (values.count("preset"))
        read_config_file(find_resource(values["preset"].as<std::string>(), "presets", ".cfg"), options, values,
                         config.files);
    try {
        po::notify(values);
    } catch (const po::error& error) {
        fail("{}; --help shows the options", error.what());
    }

    for (const auto* list :
         {"input", "layouts", "masks", "algorithms", "policies", "machines", "shapes", "transports", "beside"})
        if (values.count(list))
            for (const auto& value : values[list].as<std::vector<std::string>>())
                require(value.find_first_not_of(" \t") != std::string::npos, "--{} is given an empty value", list);
    const auto fill = [&](auto member) {
        if ((config.*member).empty()) config.*member = defaults.*member;
    };
    split_at_blanks(config.shapes);
    for (auto member : {&Config::inputs, &Config::layouts, &Config::masks, &Config::algorithms, &Config::policies,
                        &Config::machines, &Config::transports, &Config::families, &Config::beside}) {
        split_at_blanks(config.*member);
        fill(member);
    }
    fill(&Config::ranks);
    if (config.tokens.empty() && config.tokens_per_rank.empty()) {
        config.tokens = defaults.tokens;
        config.tokens_per_rank = defaults.tokens_per_rank;
    }
    if (values.count("tolerance")) config.tolerance = values["tolerance"].as<double>();
    if (values.count("no-judge")) config.judge = !values["no-judge"].as<bool>();
    check(config);
    guard_files(config, experiment);

    config.text = "experiment = " + experiment.name + "\n";
    for (const auto& [name, value] : values)
        if (!not_part_of_results.contains(name)) config.text += name + " = " + as_text(value) + "\n";
    return config;
}

std::string find_resource(const std::string& name, const std::string& folder, const std::string& extension) {
    if (std::filesystem::is_regular_file(name)) return name;
    const auto path = data_directory() + "/" + folder + "/" + name + extension;
    if (std::filesystem::is_regular_file(path)) return path;
    fail("'{}' is neither a file nor one of the known {}: {}", name, folder,
         fmt::join(resources(folder, extension), ", "));
}

layouts::Interval parse_range(const std::string& text, const std::string& what) {
    if (text.empty()) return {0, std::numeric_limits<std::int64_t>::max()};
    const auto dash = text.find('-');
    require(dash != std::string::npos, "{} is '{}'; it must be FIRST-LAST, as in 0-7", what, text);
    const auto first = layouts::parse_count(std::string_view(text).substr(0, dash), what, 0);
    return {first, layouts::parse_count(std::string_view(text).substr(dash + 1), what, first) + 1};
}

std::pair<std::int64_t, std::int64_t> parse_heads(const std::string& text) {
    const auto colon = text.find(':');
    const auto query = layouts::parse_count(std::string_view(text).substr(0, colon), "the number of query heads", 1);
    if (colon == std::string::npos) return {query, query};
    return {query, layouts::parse_count(std::string_view(text).substr(colon + 1), "the number of kv heads", 1)};
}

std::size_t parse_choice(const std::string& value, const std::string& what, const std::vector<std::string>& choices) {
    const auto found = std::find(choices.begin(), choices.end(), value);
    require(found != choices.end(), "{} is '{}'; it must be one of: {}", what, value, fmt::join(choices, ", "));
    return static_cast<std::size_t>(found - choices.begin());
}

layouts::RingGroup ring_group(const Config& config, int ranks) {
    using Placement = layouts::RingGroup::Placement;
    return {ranks, config.replicas, config.placement == "consecutive" ? Placement::consecutive : Placement::strided};
}

int run_main(const std::string& name, int (*body)(int, char**), int argc, char** argv) {
    try {
        return body(argc, argv);
    } catch (const std::bad_alloc&) {
        processes::say_last(name, "out of memory; fewer tokens, heads or ranks would need less");
    } catch (const std::exception& error) {
        processes::say_last(name, shortened(error.what()));
    }
    return 1;
}

}  // namespace ringlab::experiments
