#include "experiments/command_line/config_options.hpp"

namespace ringlab::experiments {
namespace {

/// Where p is computed, and not in decoding or for the parts of a machine file.
bool can_drop(const Experiment& experiment) {
    const auto& groups = experiment.groups;
    return !groups.decodes && !calibrates(experiment);
}

void add_ranks(Options& options, Config& config) {
    options.add({.name = "ranks",
                 .value = "P",
                 .help = "ring sizes P (number of ranks)",
                 .target = &config.sweep.ranks,
                 .absent = "powers of two, and all GPUs",
                 .low = 1,
                 .high = 1 << 20});
}

void add_layout(Options& options, Config& config, const Experiment& experiment) {
    options.section("How it is laid out");
    if (!calibrates(experiment))
        options.add({.name = "layouts",
                     .value = "NAME",
                     .help = "which rank owns which tokens (see --list)",
                     .target = &config.sweep.layouts,
                     .absent = "those that may win"});
    if (!experiment.groups.decodes)
        options.add(
            {.name = "masks",
             .value = "NAME",
             .help =
                 "which keys each query row sees (see --list); + joins terms. documents:input takes the documents of "
                 "the input",
             .target = &config.sweep.masks});
    if (!calibrates(experiment)) {
        options.add({.name = "schedules",
                     .value = "NAME",
                     .help = "which blocks travel between ranks, and when (see --list)",
                     .target = &config.sweep.schedules,
                     .absent = "those that may win"});
        add_ranks(options, config);
        if (!experiment.groups.plans && !experiment.groups.decodes)
            options.add(
                {.name = "pad",
                 .value = "",
                 .help = "round the number of tokens up to one that the layout divides; the mask hides the padding",
                 .target = &config.sweep.pad});
    }
}

void add_results(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.section("Where results go");
    options.add(
        {.name = "output",
         .value = "FILE",
         .help = std::string(calibrates(experiment) ? "machine file (TOML), for --machines of the other programs"
                                                    : "record (HDF5)") +
                 "; without the option, -2, -3 and so on is added if the file exists",
         .target = &config.output.path,
         .letter = "o",
         .decides_results = false});
    if (!calibrates(experiment))
        options.add(
            {.name = "resume",
             .value = "",
             .help = "continue a record: do only the runs that it lacks. Refused if a file that was read for it has "
                     "changed",
             .target = &config.output.resume,
             .decides_results = false});
    options.add({.name = "overwrite",
                 .value = "",
                 .help = calibrates(experiment) ? "replace a file that exists" : "replace a record that exists",
                 .target = &config.output.overwrite,
                 .decides_results = false});
    if (groups.advises)
        options.add({.name = "json",
                     .value = "FILE",
                     .help = "also write the advice as JSON to this file",
                     .target = &config.advice.json,
                     .absent = "no JSON",
                     .decides_results = false});
    if (studies(experiment))
        options.add({.name = "save-tensors",
                     .value = "FOLDER",
                     .help = "write an HDF5 file with inputs and outputs of every run to this folder "
                             "(experiments/check_tensors.py checks one)",
                     .target = &config.output.save_tensors,
                     .absent = "none are saved",
                     .decides_results = false});
}

void add_general(Options& options, Config& config, Requests& requests, const Experiment& experiment) {
    options.section("General");
    options.add({.name = "force",
                 .value = "",
                 .help = "also run what is estimated to exceed this computer's memory or to take more than a week",
                 .target = &config.force,
                 .decides_results = false});
    options.add(
        {.name = "config",
         .value = "FILE",
         .help = "file of 'name = value' lines; blanks separate several values. The command line overrides --config, "
                 "which overrides --preset",
         .target = &requests.config_files,
         .absent = "none",
         .decides_results = false});
    options.add({.name = "list",
                 .value = "",
                 .help = "show all layouts, masks, schedules, inputs, machines and presets, each with a description",
                 .target = &requests.list,
                 .decides_results = false});
    if (experiment.groups.predicts || experiment.groups.plans || calibrates(experiment))
        options.add({.name = "list-machine-keys",
                     .value = "",
                     .help = "show every key of a machine file: unit, range, what uses it, and what it is if left out",
                     .target = &requests.list_machine_keys,
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
}

}  // namespace

bool calibrates(const Experiment& experiment) { return experiment.output == FileKind::machine; }

bool studies(const Experiment& experiment) {
    const auto& groups = experiment.groups;
    return groups.measures && !groups.decodes && !calibrates(experiment);
}

bool times_attention_alone(const Experiment& experiment) {
    return experiment.groups.throughput || experiment.groups.decodes || calibrates(experiment);
}

void add_mpi(Options& options, Config& config) {
    options.add({.name = "mpi",
                 .value = "",
                 .help = "run each rank as a process of its own; start the program with mpirun or srun",
                 .target = &config.execution.mpi});
}

void add_timeout(Options& options, Config& config) {
    options.add({.name = "timeout",
                 .value = "SECONDS",
                 .help = "time after which a rank that waits for another one gives up, with an error",
                 .target = &config.execution.timeout_seconds,
                 .low = 0.001,
                 .high = 1e6});
}

Options options_of(Config& config, Requests& requests, const Experiment& experiment) {
    Options options;
    add_problem(options, config, requests, experiment);
    if (!calibrates(experiment)) add_sinks(options, config);
    if (can_drop(experiment)) add_dropout(options, config);
    add_rotary(options, config, experiment);
    add_layout(options, config, experiment);
    add_measuring(options, config, experiment);
    if (experiment.groups.throughput) add_timing(options, config, experiment.groups.predicts);
    if (experiment.groups.predicts) add_predicting(options, config, experiment);
    if (experiment.groups.disturbs) add_disturbing(options, config);
    if (experiment.groups.plans) add_planning(options, config, experiment);
    add_results(options, config, experiment);
    add_general(options, config, requests, experiment);
    return options;
}

}  // namespace ringlab::experiments
