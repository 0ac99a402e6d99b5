#include "experiments/command_line/config_options.hpp"

namespace ringlab::experiments {

void add_timing(Options& options, Config& config, bool rings_alone) {
    options.section("How it is timed");
    if (rings_alone)
        options.add({.name = "measured",
                     .value = "FILE",
                     .help =
                         "a record of validate or throughput: predict its rings (of --transports), and run nothing; "
                         "all: those of every record that comes with Ringlab, each on its machine's file",
                     .target = &config.measured,
                     .absent = "rings are run"});
    if (rings_alone)
        options.add({.name = "without",
                     .value = "TERM",
                     .help = "with --measured: score the rings once as they are and once without each of these terms "
                             "of the cost model (sim/README.md); each: every term in turn",
                     .target = &config.without,
                     .absent = "the whole model"});
    if (rings_alone)
        options.add({.name = "published",
                     .value = "NAME",
                     .help = "tables of others' rings, by name (see --list) or path: predict them, and run nothing",
                     .target = &config.published,
                     .absent = "none"});
    if (rings_alone)
        options.add({.name = "backend",
                     .value = "NAME",
                     .help = "cuda (GPUs) or cpu (processors of this machine), one for each rank",
                     .target = &config.backend,
                     .choices = {"cuda", "cpu"}});
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
                 .help = "of rings: copy (copy engines, one host), nccl" +
                         std::string(rings_alone ? "; between processors: threads" : ""),
                 .target = &config.transports,
                 .choices = rings_alone ? std::vector<std::string>{"copy", "nccl", "threads"}
                                        : std::vector<std::string>{"copy", "nccl"}});
    options.add({.name = "beside",
                 .value = "NAME",
                 .help = "what is timed for comparison: work (as much of it on one GPU), ceilings (matrix products "
                         "and links), or none",
                 .target = &config.beside,
                 .choices = {"work", "ceilings", "none"}});
    if (!rings_alone)
        options.add({.name = "protocol",
                     .value = "NAME",
                     .help = "how kernels alone are timed: sustained (back to back, at the clock that power then "
                             "allows), burst (ten passes apart from each other over inputs drawn anew, L2 cleared "
                             "before each; the median of the last five)",
                     .target = &config.protocols,
                     .choices = {"sustained", "burst"}});
    options.add({.name = "cudnn",
                 .value = "FILE",
                 .help = "libcudnn.so.9 for the baseline",
                 .target = &config.cudnn,
                 .absent = "where the loader finds it"});
    options.add(
        {.name = "deterministic", .value = "", .help = "rings with an ordered dQ", .target = &config.deterministic});
    add_mpi(options, config);
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
    add_timeout(options, config);
}

}  // namespace ringlab::experiments
