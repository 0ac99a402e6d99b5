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
    options.add({.name = "backend", .value = "NAME", .help = names, .target = &config.execution.backend});
    for (const auto& [name, backend] : backends().entries()) {
        config.execution.backends[name] = backend.factory();
        for (auto& option : config.execution.backends[name]->options()) {
            option.backend = name;
            options.add(std::move(option));
        }
    }
}

void add_execution(Options& options, Config& config, const Experiment& experiment) {
    if (calibrates(experiment)) {
        options.add({.name = "measured",
                     .value = "FILE",
                     .help = "samples that calibrate --backend cuda wrote earlier: fit them again and time nothing",
                     .target = &config.timing.measured,
                     .absent = "it is timed now"});
        options.add({.name = "gpus-per-host",
                     .value = "N",
                     .help = "number of GPUs of a host in the described machine, if it is larger than the number that "
                             "was timed; the others are assumed to be equal to those",
                     .target = &config.gpus_per_host,
                     .absent = "those that were timed",
                     .low = 1,
                     .high = 1024});
    }
    if (!calibrates(experiment)) add_mpi(options, config);
    options.add({.name = "arithmetic",
                 .value = "NAME",
                 .help = "fp64, fp32, bf16 or fp16; the last two are emulated by the CPU backend",
                 .target = &config.problem.arithmetic,
                 .choices = {"fp64", "fp32", "bf16", "fp16"}});
}

void add_replicas(Options& options, Config& config, const Experiment& experiment) {
    options.add({.name = "replicas",
                 .value = "N",
                 .help = "number of data-parallel copies of the ring",
                 .target = &config.execution.replicas,
                 .low = 1,
                 .high = 1024});
    options.add({.name = "placement",
                 .value = "NAME",
                 .help = "which global ranks form a replica: consecutive or strided",
                 .target = &config.execution.placement,
                 .choices = {"consecutive", "strided"}});
}

void add_endings(Options& options, Config& config) {
    add_timeout(options, config);
    options.add(
        {.name = "fault",
         .value = "KIND:RANK",
         .help = "make a fault on purpose at this rank: slow (compute at a quarter of the speed) on the CPU backend, "
                 "stop or kill (its process) with --mpi",
         .target = &config.execution.fault,
         .absent = "none"});
}

void add_judging(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    if (groups.measures && !groups.decodes && !calibrates(experiment))
        options.add(
            {.name = "judge-limit",
             .value = "N",
             .help = "up to this number of tokens every element is judged against fp64; above it, a sample of rows and "
                     "columns",
             .target = &config.judging.limit,
             .low = 0});
    if (groups.predicts && groups.measures)
        options.add({.name = "no-judge",
                     .value = "",
                     .help = "measure times, compare nothing with fp64",
                     .target = &config.judging.judge,
                     .turns_off = true});
    if (groups.policies)
        options.add(
            {.name = "policies",
             .value = "NAME",
             .help =
                 "how partial results are merged: carry (the fp32 state goes from block to block), gradients (carry, "
                 "but gradients travel in bf16), partials (partial results and gradients in bf16), running (as "
                 "partials, and the running output in bf16 too)",
             .target = &config.sweep.policies,
             .absent = "carry"});
    if (groups.gate)
        options.add({.name = "tolerance",
                     .value = "X",
                     .help = "largest relative error that passes; if one is larger, the exit status is 2",
                     .target = &config.judging.tolerance,
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
        options.add({.name = "repeats",
                     .value = "N",
                     .help = studies(experiment) && !groups.predicts
                                 ? "number of times that each run is executed and judged; the largest error counts"
                                 : "number of measurements of each run",
                     .target = &config.execution.repeats,
                     .low = 1,
                     .high = 1000});
        if (!calibrates(experiment)) add_endings(options, config);
    }
    add_judging(options, config, experiment);
}

}  // namespace ringlab::experiments
