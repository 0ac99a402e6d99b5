#include "experiments/command_line/config_options.hpp"

namespace ringlab::experiments {
namespace {

/// Which rings `validate` takes: those of records, published ones, or rings that it runs.
void add_validated_rings(Options& options, Config& config) {
    options.add({.name = "measured",
                 .value = "FILE",
                 .help =
                     "record of validate or throughput: predict its rings (of --transports) and run nothing. all: the "
                     "rings of every record that comes with Ringlab, each with the machine file of its machine",
                 .target = &config.timing.measured,
                 .absent = "rings are run"});
    options.add(
        {.name = "without",
         .value = "TERM",
         .help = "with --measured: score the rings with the whole cost model, and again without each of these terms "
                 "(sim/README.md); each: every term in turn",
         .target = &config.scoring.without,
         .absent = "the whole model"});
    options.add({.name = "explain",
                 .value = "",
                 .help =
                     "with --measured: replay each ring with measured times in place of predicted ones, and say which "
                     "part of the cost model owns the error (sim/README.md)",
                 .target = &config.scoring.explain});
    options.add(
        {.name = "published",
         .value = "NAME",
         .help =
             "tables of published rings, or CSV files of published systems, by name (see --list) or path: predict them "
             "and run nothing",
         .target = &config.scoring.published,
         .absent = "none"});
    options.add({.name = "backend",
                 .value = "NAME",
                 .help = "what runs the ranks: cuda (a GPU each) or cpu (a processor of this machine each)",
                 .target = &config.execution.backend,
                 .choices = {"cuda", "cpu"}});
}

/// What is timed: shapes, kernels, transports, and what stands beside them.
void add_timed(Options& options, Config& config, bool rings_alone) {
    options.add({.name = "shapes",
                 .value = "SHAPE",
                 .help = "shapes, instead of --heads, dims and --arithmetic: HEADS/DIM or HEADS/DIM/ARITHMETIC, as in "
                         "32:8/128, 32:8/192-128 or 16/64/fp16",
                 .target = &config.timing.shapes,
                 .absent = "the one of --heads, dims and --arithmetic"});
    options.add({.name = "arithmetic",
                 .value = "NAME",
                 .help = "bf16 or fp16",
                 .target = &config.problem.arithmetic,
                 .choices = {"bf16", "fp16"}});
    options.add({.name = "kernels",
                 .value = "NAME",
                 .help = "kernel families that are timed: auto (the fastest that runs), portable, hopper",
                 .target = &config.timing.kernels,
                 .choices = {"auto", "portable", "hopper"}});
    options.add(
        {.name = "transports",
         .value = "NAME",
         .help = "transports of rings: copy (copy engines, one host), nccl, mixed (copy engines inside a host, NCCL "
                 "between hosts)" +
                 std::string(rings_alone ? "; with --backend cpu: threads" : ""),
         .target = &config.timing.transports,
         .choices = rings_alone ? std::vector<std::string>{"copy", "nccl", "mixed", "threads"}
                                : std::vector<std::string>{"copy", "nccl", "mixed"}});
    options.add(
        {.name = "beside",
         .value = "NAME",
         .help = "what is timed for comparison: work (as much work on one GPU), ceilings (matrix products and links), "
                 "or none",
         .target = &config.timing.beside,
         .choices = {"work", "ceilings", "none"}});
    if (!rings_alone)
        options.add(
            {.name = "protocol",
             .value = "NAME",
             .help =
                 "how kernels alone are timed: sustained (back to back, at the clock that power then allows), burst "
                 "(ten separate passes with new inputs, L2 cleared before each; the median of the last five)",
             .target = &config.timing.protocols,
             .choices = {"sustained", "burst"}});
    options.add({.name = "cudnn",
                 .value = "FILE",
                 .help = "path of libcudnn.so.9, for the baseline",
                 .target = &config.timing.cudnn,
                 .absent = "where the loader finds it"});
    options.add({.name = "deterministic",
                 .value = "",
                 .help = "time rings with deterministic dQ: contributions are added in a fixed order",
                 .target = &config.timing.deterministic});
    add_mpi(options, config);
}

/// For how long, and how often.
void add_repetition(Options& options, Config& config) {
    options.add({.name = "warm-up",
                 .value = "SECONDS",
                 .help = "device time to run each case before it is measured; longer if times are not steady yet",
                 .target = &config.timing.warm_up_seconds,
                 .low = 0,
                 .high = 60});
    options.add({.name = "seconds",
                 .value = "SECONDS",
                 .help = "device time to measure each pass or kernel for",
                 .target = &config.timing.repeat_seconds,
                 .low = 1e-6,
                 .high = 60});
    options.add({.name = "repeats",
                 .value = "N",
                 .help = "least number of passes of a ring to measure",
                 .target = &config.execution.repeats,
                 .low = 1,
                 .high = 1000});
    options.add({.name = "rounds",
                 .value = "N",
                 .help = "number of rounds in which kernels alone and baselines take turns",
                 .target = &config.timing.rounds,
                 .low = 1,
                 .high = 100});
    add_timeout(options, config);
}

}  // namespace

void add_timing(Options& options, Config& config, bool rings_alone) {
    options.section("How it is timed");
    if (rings_alone) add_validated_rings(options, config);
    add_timed(options, config, rings_alone);
    add_repetition(options, config);
}

}  // namespace ringlab::experiments
