#include "experiments/command_line/config_options.hpp"

namespace ringlab::experiments {
namespace {

/// What `advise` may use to find a plan.
void add_search(Options& options, Config& config) {
    add_clock(options, config);
    add_threads(options, config);
    options.add(
        {.name = "gpus",
         .value = "N",
         .help = "number of GPUs to spread the batch over: GPUs that one ring does not need compute other sequences",
         .target = &config.advice.gpus,
         .absent = "the largest of --ranks, or all of the machine",
         .low = 0,
         .high = 1 << 20});
    options.add({.name = "budget",
                 .value = "SECONDS",
                 .help =
                     "time for simulating candidates on one core, at 100,000 operations per second; saying where their "
                     "time goes may take as long again. Candidates that do not fit into it are only estimated",
                 .target = &config.advice.budget_seconds,
                 .low = 0,
                 .high = 1e6});
}

/// How much memory a device has.
void add_device_memory(Options& options, Config& config) {
    options.add({.name = "device-memory",
                 .value = "GB",
                 .help = "memory of one device, in 10^9 bytes",
                 .target = &config.memory.device_gigabytes,
                 .absent = "the machine file says",
                 .low = 0,
                 .high = 1e6});
    options.add({.name = "reserved",
                 .value = "GB",
                 .help = "part of it that tensors cannot use: context, kernels, buffers of transports",
                 .target = &config.memory.reserved_gigabytes,
                 .absent = "the machine file says",
                 .low = 0,
                 .high = 1e6});
    options.add({.name = "resident",
                 .value = "GB",
                 .help = "part of it that is always in use: weights, optimizer",
                 .target = &config.memory.resident_gigabytes,
                 .low = 0,
                 .high = 1e6});
}

/// What a model keeps of each layer.
void add_kept(Options& options, Config& config, bool confirms) {
    options.add({.name = "layers",
                 .value = "N",
                 .help = "number of attention layers whose activations are kept until the backward pass",
                 .target = &config.memory.model_layers,
                 .low = 1,
                 .high = 100000});
    options.add(
        {.name = "keep",
         .value = "POLICY",
         .help = "what is kept of each layer: everything (input, Q, K, V, O, lse), output (input, O, lse), kv (input, "
                 "K, V), checkpoint (input), or cache (K, V, without a backward pass). The rest is computed again",
         .target = &config.memory.keep,
         .choices = {"everything", "output", "kv", "checkpoint", "cache"}});
    if (confirms)
        options.add(
            {.name = "confirm",
             .value = "",
             .help =
                 "run a forward and a backward pass of each result on the GPUs of this machine, with everything that "
                 "is kept allocated, and say how much memory was left",
             .target = &config.confirm});
    options.add({.name = "hidden",
                 .value = "N",
                 .help = "width of the model: elements per token of a layer's input",
                 .target = &config.memory.hidden,
                 .absent = "query heads x head dim",
                 .low = 0,
                 .high = 1e9});
    options.add({.name = "beside",
                 .value = "BYTES",
                 .help = "bytes kept for each token and layer by other parts than attention, such as an MLP",
                 .target = &config.memory.beside_bytes,
                 .low = 0,
                 .high = 1e9});
}

}  // namespace

void add_planning(Options& options, Config& config, const Experiment& experiment) {
    options.section("What it must fit");
    options.add({.name = "machines",
                 .value = "NAME",
                 .help = "machine files, by name (see --list) or path: devices, links, transport",
                 .target = &config.prediction.machines});
    if (experiment.groups.advises) add_search(options, config);
    add_device_memory(options, config);
    add_kept(options, config, !experiment.groups.advises);
}

}  // namespace ringlab::experiments
