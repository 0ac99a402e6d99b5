#include "experiments/command_line/config_options.hpp"

namespace ringlab::experiments {

void add_planning(Options& options, Config& config, const Experiment& experiment) {
    options.section("What it must fit");
    options.add({.name = "machines",
                 .value = "NAME",
                 .help = "machine files, by name (see --list) or path: devices, links, transport",
                 .target = &config.machines});
    if (experiment.groups.advises) {
        add_clock(options, config);
        add_threads(options, config);
        options.add({.name = "gpus",
                     .value = "N",
                     .help = "to spread over; what rings leave takes other sequences of the batch",
                     .target = &config.gpus,
                     .absent = "the largest of --ranks, or all of the machine",
                     .low = 0,
                     .high = 1 << 20});
        options.add({.name = "budget",
                     .value = "SECONDS",
                     .help = "that the simulator may take for candidates, on one core at 100,000 operations a second, "
                             "and as long again to say where their time goes; what it does not come to is an estimate",
                     .target = &config.budget_seconds,
                     .low = 0,
                     .high = 1e6});
    }
    options.add({.name = "device-memory",
                 .value = "GB",
                 .help = "of one device, 10^9 bytes",
                 .target = &config.device_memory_gigabytes,
                 .absent = "the machine file says",
                 .low = 0,
                 .high = 1e6});
    options.add({.name = "reserved",
                 .value = "GB",
                 .help = "of it what tensors cannot have: context, kernels, buffers of transports",
                 .target = &config.reserved_gigabytes,
                 .absent = "the machine file says",
                 .low = 0,
                 .high = 1e6});
    options.add({.name = "resident",
                 .value = "GB",
                 .help = "of it what lies there all the time: weights, optimizer",
                 .target = &config.resident_gigabytes,
                 .low = 0,
                 .high = 1e6});
    options.add({.name = "layers",
                 .value = "N",
                 .help = "attention layers whose activations are kept until the backward pass",
                 .target = &config.model_layers,
                 .low = 1,
                 .high = 100000});
    options.add({.name = "keep",
                 .value = "POLICY",
                 .help = "what of each layer: everything (input, Q, K, V, O, lse), output (input, O, lse), kv (input, "
                         "K, V), checkpoint (input), or cache (K, V of a forward pass alone); the rest is computed "
                         "again",
                 .target = &config.keep,
                 .choices = {"everything", "output", "kv", "checkpoint", "cache"}});
    if (!experiment.groups.advises)
        options.add({.name = "confirm",
                     .value = "",
                     .help = "run one pass of each kind of what fits on the GPUs that are here, with all that is kept "
                             "taken from their memory, and say what was left of it",
                     .target = &config.confirm});
    options.add({.name = "hidden",
                 .value = "N",
                 .help = "width of the model: elements of a layer's input",
                 .target = &config.hidden,
                 .absent = "query heads x head dim",
                 .low = 0,
                 .high = 1e9});
    options.add({.name = "beside",
                 .value = "BYTES",
                 .help = "kept of each token and layer beside attention, as by an MLP",
                 .target = &config.beside_bytes,
                 .low = 0,
                 .high = 1e9});
}

}  // namespace ringlab::experiments
