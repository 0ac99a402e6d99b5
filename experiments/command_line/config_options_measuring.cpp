#include "experiments/command_line/config_options.hpp"

#include "experiments/execution/backend.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

/// What executes, with the options of each.
void add_backends(Options& options, Config& config) {
    std::string names;
    for (const auto& [name, backend] : backends().entries())
        names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", name, backend.help);
    options.add({.name = "backend", .value = "NAME", .help = names, .target = &config.backend});
    for (const auto& [name, backend] : backends().entries()) {
        config.backends[name] = backend.factory();
        for (auto& option : config.backends[name]->options()) {
            option.backend = name;
            options.add(std::move(option));
        }
    }
}

void add_execution(Options& options, Config& config, const Experiment& experiment) {
    if (calibrates(experiment)) {
        options.add({.name = "measured",
                     .value = "FILE",
                     .help = "what calibrate --backend cuda has kept of an earlier run: fit it again, time nothing",
                     .target = &config.measured,
                     .absent = "it is timed now"});
        options.add({.name = "gpus-per-host",
                     .value = "N",
                     .help = "GPUs of a host of the machine that is described, where more are wanted than were timed: "
                             "the others are taken to be like those",
                     .target = &config.gpus_per_host,
                     .absent = "those that were timed",
                     .low = 1,
                     .high = 1024});
    }
    if (experiment.groups.breaks)
        options.add({.name = "launcher",
                     .value = "WORDS",
                     .help =
                         "what starts the processes in which faults of the machine are made, followed by -np P; none "
                         "leaves them out. In a container perhaps 'mpirun --allow-run-as-root'",
                     .target = &config.launcher});
    else if (!calibrates(experiment))
        add_mpi(options, config);
    options.add({.name = "arithmetic",
                 .value = "NAME",
                 .help = "fp64, fp32, bf16 or fp16; the last two are emulated by the CPU backend",
                 .target = &config.arithmetic,
                 .choices = {"fp64", "fp32", "bf16", "fp16"}});
}

void add_replicas(Options& options, Config& config, const Experiment& experiment) {
    options.add({.name = "replicas",
                 .value = "N",
                 .help = "data-parallel copies of the ring",
                 .target = &config.replicas,
                 .low = 1,
                 .high = 1024});
    if (experiment.groups.layer)
        options.add({.name = "loss-tokens",
                     .value = "N...",
                     .help = "of each replica, how many of its tokens count in the loss: the first ones",
                     .target = &config.loss_tokens,
                     .absent = "all of the first replica, ever fewer of the others",
                     .low = 1});
    options.add({.name = "placement",
                 .value = "NAME",
                 .help = "global ranks of a replica: consecutive or strided",
                 .target = &config.placement,
                 .choices = {"consecutive", "strided"}});
}

void add_endings(Options& options, Config& config, const Experiment& experiment) {
    add_timeout(options, config);
    if (!experiment.groups.breaks)
        options.add({.name = "fault",
                     .value = "KIND:RANK",
                     .help =
                         "a fault of the machine, to see what becomes of it: slow (a quarter of the speed) or flip (a "
                         "bit of a message) on the CPU backend, stop or kill (its process) with --mpi",
                     .target = &config.fault,
                     .absent = "none"});
}

void add_judging(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    if (groups.measures && !groups.decodes && !groups.packs && !calibrates(experiment))
        options.add({.name = "judge-limit",
                     .value = "N",
                     .help = "tokens up to which every element is judged against fp64; above, a sample of rows and "
                             "columns",
                     .target = &config.judge_limit,
                     .low = 0});
    if (groups.predicts && groups.measures && !groups.packs)
        options.add({.name = "no-judge",
                     .value = "",
                     .help = "measure times, compare nothing with fp64",
                     .target = &config.judge,
                     .turns_off = true});
    if (groups.policies)
        options.add({.name = "policies",
                     .value = "NAME",
                     .help =
                         "how partial results become one: carry (fp32), gradients (carry, with bf16 gradients between "
                         "ranks), partials (bf16, gradients too), running (bf16 partials and running output)",
                     .target = &config.policies,
                     .absent = "carry"});
    if (groups.gate)
        options.add({.name = "tolerance",
                     .value = "X",
                     .help = "largest relative error that passes; above it the exit status is 2",
                     .target = &config.tolerance,
                     .absent = "for each run what the roundings of its arithmetic and policy can leave in its inputs, "
                               "which the record keeps",
                     .low = 0});
}

}  // namespace

void add_measuring(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    if (groups.measures) {
        options.section("How it is measured");
        add_backends(options, config);
        add_execution(options, config, experiment);
        if (studies(experiment)) add_replicas(options, config, experiment);
        if (!groups.breaks)
            options.add({.name = "repeats",
                         .value = "N",
                         .help = studies(experiment) && !groups.predicts
                                     ? "times that each run is executed and judged; the worst counts"
                                     : "measurements of each run",
                         .target = &config.repeats,
                         .low = 1,
                         .high = 1000});
        if (!calibrates(experiment)) add_endings(options, config, experiment);
    }
    add_judging(options, config, experiment);
}

}  // namespace ringlab::experiments
