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

/// Global batches whose documents `advise` shares among rings.
void add_batch(Options& options, Config& config) {
    options.section("Global batches of packings, instead of one sequence");
    options.add({.name = "batch-file",
                 .value = "FILE",
                 .help = "share the documents of a global batch among rings. The file has a line for each packing: the "
                         "lengths of its documents, such as 512,300,128x4. The packings as given are on rings of one "
                         "size, GPUs / packings",
                 .target = &config.batch.file,
                 .absent = "no batch"});
    options.add(
        {.name = "batches",
         .value = "N",
         .help = "draw N batches of packings of --tokens by --seed, for rings of --ranks GPUs (those of a host)",
         .target = &config.batch.count,
         .absent = "none are drawn",
         .low = 0,
         .high = 1e4});
    options.add({.name = "lengths",
                 .value = "FILE",
                 .help = "file with lengths of documents from which --batches are drawn",
                 .target = &config.batch.lengths});
    options.add({.name = "seed", .value = "N", .help = "seed of --batches", .target = &config.problem.seed, .low = 0});
    options.add({.name = "ring-sizes",
                 .value = "P",
                 .help = "sizes that rings may have where sizes differ: each divides a host, or is a multiple of one",
                 .target = &config.batch.sizes,
                 .absent = "powers of two within a host and of hosts, and all GPUs",
                 .low = 1,
                 .high = 1 << 20});
    options.add({.name = "most-tokens-per-rank",
                 .value = "N",
                 .help = "most tokens of any rank of any ring",
                 .target = &config.batch.most_tokens_per_rank,
                 .absent = "as many as a rank has with the packings as given",
                 .low = 0,
                 .high = 1e9});
    options.add({.name = "assignment",
                 .value = "FILE",
                 .help = "write the advised rings to this file: a line for each ring, with its ranks and its documents",
                 .target = &config.batch.assignment,
                 .absent = "not written",
                 .decides_results = false});
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
    if (experiment.groups.advises) add_batch(options, config);
}

}  // namespace ringlab::experiments
