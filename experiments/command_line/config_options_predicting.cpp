#include "experiments/command_line/config_options.hpp"

namespace ringlab::experiments {

void add_predicting(Options& options, Config& config, const Experiment& experiment) {
    options.section("What it is predicted on");
    options.add({.name = "machines",
                 .value = "NAME",
                 .help = "machine files, by name (see --list) or path; calibrate writes one for this computer",
                 .target = &config.prediction.machines});
    options.add(
        {.name = "compute-model",
         .value = "NAME",
         .help = "tiles: list scheduling of work tiles on SMs; rate: FLOP/s, or the time to read K and V if that is "
                 "longer, for thousands of ranks",
         .target = &config.prediction.compute_model,
         .choices = {"tiles", "rate"}});
    if (!experiment.groups.throughput) add_clock(options, config);  // which is that of what was measured
    options.add(
        {.name = "engine",
         .value = "NAME",
         .help = "events: the simulator; symmetric: a recurrence for rings in which all ranks do the same and share "
                 "no resource, with --compute-model rate. It takes seconds for 16384 ranks, but gives only when each "
                 "rank ends",
         .target = &config.prediction.engine,
         .choices = {"events", "symmetric"}});
    options.add({.name = "span-ranks",
                 .value = "N",
                 .help = "largest number of ranks for which the record keeps when each operation is predicted to run",
                 .target = &config.prediction.span_ranks,
                 .low = 0});
    options.add(
        {.name = "cause-ranks",
         .value = "N",
         .help = "largest number of ranks for which the causes of a pass's time are predicted too, which takes five "
                 "to seven times as long",
         .target = &config.prediction.cause_ranks,
         .low = 0});
    options.add({.name = "trace",
                 .value = "FILE",
                 .help = "write a Chrome trace (open it in Perfetto)",
                 .target = &config.trace.file,
                 .absent = "no trace",
                 .decides_results = false});
    options.add({.name = "trace-runs",
                 .value = "N",
                 .help = "write a trace of only the first N runs",
                 .target = &config.trace.runs,
                 .low = 1,
                 .decides_results = false});
    options.add({.name = "trace-ranks",
                 .value = "FIRST-LAST",
                 .help = "write a trace of only these ranks",
                 .target = &config.trace.ranks,
                 .absent = "all",
                 .decides_results = false});
    options.add({.name = "trace-steps",
                 .value = "FIRST-LAST",
                 .help = "write a trace of only these steps",
                 .target = &config.trace.steps,
                 .absent = "all",
                 .decides_results = false});
    if (experiment.groups.disturbs)
        options.add({.name = "chakra",
                     .value = "DIR",
                     .help =
                         "write the schedule of every run and pass as Chakra execution traces, which ASTRA-sim plays: "
                         "DIR/NAME.GPU.et for each GPU (docs/how-to/traces.md)",
                     .target = &config.trace.chakra,
                     .absent = "none",
                     .decides_results = false});
}

namespace {

void add_rings(Options& options, Config& config) {
    options.add(
        {.name = "replicas",
         .value = "N",
         .help = "number of data-parallel copies of the ring, side by side on the machine, each with its own sequences",
         .target = &config.execution.replicas,
         .low = 1,
         .high = 1 << 20});
    options.add(
        {.name = "placement",
         .value = "NAME",
         .help = "which GPUs form a ring: consecutive, strided (every N-th of N replicas), or file:PATH, a file with "
                 "the GPU number of each rank, ring by ring. GPUs are numbered host by host",
         .target = &config.execution.placement});
}

void add_stragglers(Options& options, Config& config) {
    const auto some = [&](const char* name, const char* help, int& target) {
        options.add({.name = name, .value = "N", .help = help, .target = &target, .low = 0, .high = 1 << 20});
    };
    const auto factor = [&](const char* name, const char* help, double& target) {
        options.add({.name = name, .value = "X", .help = help, .target = &target, .low = 1, .high = 1e6});
    };
    some("slow-gpus", "number of ranks that compute slowly, drawn anew in each repeat",
         config.prediction.jitter.slow_gpus);
    factor("slow-gpu-factor", "how many times longer a slow GPU computes", config.prediction.jitter.slow_gpu_factor);
    some("slow-links", "number of ranks whose outgoing messages go over a slow link or port, drawn anew in each repeat",
         config.prediction.jitter.slow_links);
    factor("slow-link-factor", "factor by which the rate of a slow link is divided",
           config.prediction.jitter.slow_link_factor);
}

}  // namespace

void add_clock(Options& options, Config& config) {
    options.add(
        {.name = "clock",
         .value = "NAME",
         .help = "GPU clock during attends: sustained (what power allows when passes are repeated without end, as in "
                 "training), or calibrated (that of short runs, for which predictions are not scored)",
         .target = &config.prediction.clock,
         .choices = {"sustained", "calibrated"}});
}

void add_threads(Options& options, Config& config) {
    options.add({.name = "threads",
                 .value = "N",
                 .help = "number of threads that predict; it changes no result",
                 .target = &config.prediction.threads,
                 .absent = "one for each processor",
                 .low = 0,
                 .high = 1024,
                 .decides_results = false});
}

void add_disturbing(Options& options, Config& config) {
    add_rings(options, config);
    add_threads(options, config);
    options.section("What disturbs it");
    add_stragglers(options, config);
    const auto noise = [&](const char* name, const char* help, double& target) {
        options.add({.name = name, .value = "X", .help = help, .target = &target, .low = 0, .high = 3});
    };
    noise("compute-noise",
          "noise of compute times: standard deviation of their logarithm (0.05: some 5 %); the median stays "
          "the same",
          config.prediction.jitter.compute_noise);
    noise("transfer-noise", "the same for times of messages", config.prediction.jitter.transfer_noise);
    options.add({.name = "start-skew",
                 .value = "US",
                 .help = "each rank starts late by up to this many microseconds, drawn uniformly",
                 .target = &config.prediction.start_skew_us,
                 .low = 0,
                 .high = 1e9});
    options.add(
        {.name = "repeats",
         .value = "N",
         .help = "number of disturbed passes, each drawn anew; their percentiles are shown beside the undisturbed time",
         .target = &config.execution.repeats,
         .low = 1,
         .high = 1e6});
    options.add(
        {.name = "seed", .value = "N", .help = "seed of the random numbers", .target = &config.problem.seed, .low = 0});
}

}  // namespace ringlab::experiments
