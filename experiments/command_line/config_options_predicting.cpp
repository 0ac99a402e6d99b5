#include "experiments/command_line/config_options.hpp"

namespace ringlab::experiments {

void add_predicting(Options& options, Config& config, const Experiment& experiment) {
    options.section("What it is predicted on");
    options.add({.name = "machines",
                 .value = "NAME",
                 .help = "machine files, by name (see --list) or path; calibrate makes one of this computer",
                 .target = &config.machines});
    options.add({.name = "compute-model",
                 .value = "NAME",
                 .help = "tiles: list-schedule every tile; rate: FLOP/s, or the bytes of K and V where reading them "
                         "takes longer, for thousands of ranks",
                 .target = &config.compute_model,
                 .choices = {"tiles", "rate"}});
    if (!experiment.groups.throughput) add_clock(options, config);  // which is that of what was measured
    if (experiment.groups.packs) return;  // figures over all packings, by the simulator, and no operations
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
    options.add({.name = "cause-ranks",
                 .value = "N",
                 .help = "most ranks for which it is said where the time of a pass goes, which takes five to seven "
                         "times as long",
                 .target = &config.cause_ranks,
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

namespace {

void add_rings(Options& options, Config& config) {
    options.add({.name = "replicas",
                 .value = "N",
                 .help = "data-parallel copies of the ring, side by side on the machine, with sequences of their own",
                 .target = &config.replicas,
                 .low = 1,
                 .high = 1 << 20});
    options.add({.name = "placement",
                 .value = "NAME",
                 .help =
                     "GPUs of a ring: consecutive, strided (every N-th of N replicas), or file:PATH with the number "
                     "of each rank's GPU, ring by ring; GPUs are numbered host by host",
                 .target = &config.placement});
}

void add_stragglers(Options& options, Config& config) {
    const auto some = [&](const char* name, const char* help, int& target) {
        options.add({.name = name, .value = "N", .help = help, .target = &target, .low = 0, .high = 1 << 20});
    };
    const auto factor = [&](const char* name, const char* help, double& target) {
        options.add({.name = name, .value = "X", .help = help, .target = &target, .low = 1, .high = 1e6});
    };
    some("slow-gpus", "so many ranks, drawn anew in each repeat, compute slowly", config.jitter.slow_gpus);
    factor("slow-gpu-factor", "for so many times as long as others", config.jitter.slow_gpu_factor);
    some("slow-links", "what so many ranks send, or others fetch from them, goes over a slow link or port",
         config.jitter.slow_links);
    factor("slow-link-factor", "whose rate is divided by this", config.jitter.slow_link_factor);
}

}  // namespace

void add_clock(Options& options, Config& config) {
    options.add({.name = "clock",
                 .value = "NAME",
                 .help = "of attends: sustained (what power allows when passes follow each other without end, as in "
                         "training), or calibrated (of short runs, for which predictions are not scored)",
                 .target = &config.clock,
                 .choices = {"sustained", "calibrated"}});
}

void add_threads(Options& options, Config& config) {
    options.add({.name = "threads",
                 .value = "N",
                 .help = "to predict on, which changes no result",
                 .target = &config.threads,
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
          "standard deviation of the logarithm of how long each operation computes (0.05: some 5 %); the median stays",
          config.jitter.compute_noise);
    noise("transfer-noise", "the same of how long each message takes", config.jitter.transfer_noise);
    options.add({.name = "start-skew",
                 .value = "US",
                 .help = "each rank starts up to so many microseconds late, drawn evenly",
                 .target = &config.start_skew_us,
                 .low = 0,
                 .high = 1e9});
    options.add({.name = "repeats",
                 .value = "N",
                 .help = "of what is disturbed, each drawn anew: their percentiles stand beside the undisturbed time",
                 .target = &config.repeats,
                 .low = 1,
                 .high = 1e6});
    options.add({.name = "seed", .value = "N", .help = "of what is drawn", .target = &config.seed, .low = 0});
}

}  // namespace ringlab::experiments
