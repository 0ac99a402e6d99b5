#include "experiments/console/config_options.hpp"

#include "experiments/inputs/inputs.hpp"
#include "experiments/study/backend.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

std::string generators() {
    std::string names;
    for (const auto& kind : input_kinds()) names += (names.empty() ? "" : ", ") + kind.name;
    return names;
}

bool calibrates(const Experiment& experiment) { return experiment.output == FileKind::machine; }

/// Where p is computed, and not in decoding or for the parts of a machine file.
bool can_drop(const Experiment& experiment) {
    const auto& groups = experiment.groups;
    return !groups.decodes && !groups.lists && !groups.breaks && !calibrates(experiment);
}

void add_mpi(Options& options, Config& config) {
    options.add(
        {.name = "mpi", .value = "", .help = "a process for each rank, under mpirun or srun", .target = &config.mpi});
}

void add_tokens(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.add({.name = "tokens",
                 .value = "N",
                 .help = groups.measures ? "tokens of the whole sequence; of a file, the first so many"
                                         : "tokens of the whole sequence",
                 .target = &config.tokens,
                 .absent = !config.tokens_per_rank.empty() ? "--tokens-per-rank says"
                                                           : "as many as the input has; 512 of generated ones",
                 .low = 1});
    options.add({.name = "tokens-per-rank",
                 .value = "N",
                 .help = "instead of --tokens: tokens of each rank",
                 .target = &config.tokens_per_rank,
                 .absent = "--tokens says",
                 .low = 1});
}

void add_problem(Options& options, Config& config, Requests& requests, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.section("What is computed");
    if (groups.stacks) {
        options.add(
            {.name = "stack",
             .value = "NAME",
             .help = "a model's layers, by name (see --list) or a file that says '46 layers: LOCAL 5x GLOBAL', with "
                     "names of presets",
             .target = &config.stack});
        options.add({.name = "scale-down",
                     .value = "N",
                     .help = "executed are so many times fewer tokens, under windows and chunks so many times shorter, "
                             "with one kv head",
                     .target = &config.scale_down,
                     .low = 1,
                     .high = 1 << 20});
    }
    if (!groups.plans || groups.advises) add_tokens(options, config, experiment);
    if (groups.decodes) {
        options.add({.name = "sequences",
                     .value = "N",
                     .help = "that grow together; sequence s of N, from 0, has (N-s)/N of --tokens at the start",
                     .target = &config.sequences,
                     .low = 1,
                     .high = 4096});
        options.add({.name = "steps",
                     .value = "N",
                     .help = "tokens appended to each sequence, one at a time",
                     .target = &config.steps,
                     .low = 1,
                     .high = 100000});
    }
    const bool has_sequences_of_its_own =
        groups.plans || groups.throughput || groups.layer || groups.lists || groups.decodes;
    if (!has_sequences_of_its_own && !calibrates(experiment))
        options.add({.name = "queries",
                     .value = "N",
                     .help = "of every sequence only the last N tokens have a query row, as a suffix after a prefix "
                             "whose K, V are at hand, or 1 in decoding; 0: all have",
                     .target = &config.queries,
                     .absent = "all have",
                     .low = 0});
    options.add({.name = "batch", .value = "N", .help = "sequences at a time", .target = &config.batch, .low = 1});
    options.add({.name = "heads",
                 .value = "Q:KV",
                 .help = "query and kv heads, as 32:8; 32 alone is 32:32",
                 .target = &config.heads,
                 .absent = "those of the input; 4:2 for generated ones"});
    options.add({.name = "head-dim",
                 .value = "N",
                 .help = "size of a query or key",
                 .target = &config.head_dim,
                 .absent = "that of the input; 128 for generated ones",
                 .low = 0});
    options.add({.name = "value-dim",
                 .value = "N",
                 .help = "size of a value",
                 .target = &config.value_dim,
                 .absent = "the head dim, or that of the input",
                 .low = 0});
    options.add({.name = "latent",
                 .value = "RANK+SHARED",
                 .help = "multi-head latent attention, as 512+64: K and V of all heads are made, by a matrix for each "
                         "head, of RANK numbers a token, and SHARED more are the last dims of every K; those numbers "
                         "travel, are expanded where they arrive, and so are their gradients compressed. "
                         "--algorithms expanded:ring sends K and V that were expanded at home instead" +
                         std::string(times_attention_alone(experiment)
                                         ? ". Here attention alone is timed, over K and V as given"
                                         : ""),
                 .target = &config.latent_spec,
                 .absent = "K and V are given"});
    options.add({.name = "scale",
                 .value = "X",
                 .help = "of q.k",
                 .target = &config.scale,
                 .absent = "that of the input, or 1/sqrt(head dim)"});
    options.add({.name = "soft-cap",
                 .value = "C",
                 .help = "scores s become C*tanh(s/C)",
                 .target = &config.soft_cap,
                 .absent = "that of the input, or none",
                 .low = 0});
    options.add({.name = "preset",
                 .value = "NAME",
                 .help = "sizes of a real model, by name (see --list) or a file like those of --config" +
                         std::string(groups.measures ? "; inputs are then generated, unless --input names some" : ""),
                 .target = &requests.preset,
                 .absent = "none",
                 .decides_results = false});
    if (groups.measures && !groups.decodes)
        options.add(
            {.name = "input",
             .value = "NAME",
             .help = fmt::format("real (comes with Ringlab), a generator ({}), or an HDF5 file with q, k, v and "
                                 "perhaps do, each (batch, token, head, dim)",
                                 generators()),
             .target = &config.inputs});
    if (groups.measures)
        options.add({.name = "seed", .value = "N", .help = "of the generators", .target = &config.seed, .low = 0});
}

void add_rotary(Options& options, Config& config, const Experiment& experiment) {
    std::string scalings;
    for (const auto& scaling : layouts::rotary_scaling_usages())
        scalings += fmt::format("{}{} ({})", scalings.empty() ? "" : ", ", scaling.usage, scaling.help);
    options.section("How q and k are rotated by their position before they are attended to (rotary embedding)");
    options.add({.name = "rotary",
                 .value = "BASE",
                 .help = "base of the frequencies, as 500000; dq and dk are those of q and k before" +
                         std::string(times_attention_alone(experiment)
                                         ? ". Here attention alone is timed, and what rotates is left out"
                                         : ""),
                 .target = &config.rotary.base,
                 .absent = "nothing is rotated",
                 .low = 0});
    options.add({.name = "rotary-dims",
                 .value = "N",
                 .help = "dims of a head that are rotated",
                 .target = &config.rotary.dims,
                 .absent = "all from the first one on",
                 .low = 0});
    options.add({.name = "rotary-first",
                 .value = "N",
                 .help = "the first of them; those before and behind stay",
                 .target = &config.rotary.first,
                 .low = 0});
    options.add({.name = "rotary-pairs",
                 .value = "NAME",
                 .help = "dims that turn together, of n: half (i and n/2 + i) or interleaved (2i and 2i + 1)",
                 .target = &config.rotary_pairs,
                 .choices = {"half", "interleaved"}});
    options.add({.name = "rotary-scaling",
                 .value = "SPEC",
                 .help = "for more tokens than a model was trained on: " + scalings,
                 .target = &config.rotary_scaling});
    options.add({.name = "rotary-positions",
                 .value = "NAME",
                 .help = "global, or documents: counted from 0 in every document that the mask packs, that is in each "
                         "of the shortest stretches of tokens that see, and are seen by, none outside",
                 .target = &config.rotary_positions,
                 .choices = {"global", "documents"}});
}

void add_sinks(Options& options, Config& config) {
    options.add(
        {.name = "sinks",
         .value = "X...",
         .help = "learned sink logits: the softmax's denominator of a query head gains exp(X). One for all heads, one "
                 "for each as in --sinks=1.5,-2, or normal: drawn by --seed",
         .target = &config.sinks,
         .absent = "there are none"});
}

void add_dropout(Options& options, Config& config) {
    options.add({.name = "dropout",
                 .value = "P",
                 .help = "probability that a p is set to 0 behind the softmax, the others being divided by 1 - P: the "
                         "same ones for every layout, schedule, number of ranks and backend",
                 .target = &config.dropout.probability,
                 .absent = "nothing is dropped out"});
    options.add({.name = "dropout-seed",
                 .value = "N",
                 .help = "of what is dropped out, by batch element, head, query and key",
                 .target = &config.dropout.seed,
                 .low = 0});
}

void add_packing(Options& options, Config& config) {
    options.section("What is packed");
    add_threads(options, config);
    options.add({.name = "lengths",
                 .value = "FILE",
                 .help = "lengths of documents in tokens, between blanks; document_lengths comes with Ringlab: 4000 "
                         "manual pages and texts of a Debian system, a token for 4 bytes",
                 .target = &config.lengths});
    options.add({.name = "packings",
                 .value = "N",
                 .help = "sequences of documents drawn from these, the last one cut",
                 .target = &config.packings,
                 .low = 1,
                 .high = 1e6});
    options.add({.name = "measured-packings",
                 .value = "N",
                 .help = "the first so many are executed too",
                 .target = &config.measured_packings,
                 .low = 0,
                 .high = 1e6});
}

void add_ranks(Options& options, Config& config) {
    options.add({.name = "ranks",
                 .value = "P",
                 .help = "ring sizes",
                 .target = &config.ranks,
                 .absent = "powers of two, and all GPUs",
                 .low = 1,
                 .high = 1 << 20});
}

void add_layout(Options& options, Config& config, const Experiment& experiment) {
    options.section("How it is laid out");
    if (experiment.groups.breaks) return add_ranks(options, config);
    if (!calibrates(experiment))
        options.add({.name = "layouts",
                     .value = "NAME",
                     .help = "which rank owns which tokens (see --list)",
                     .target = &config.layouts,
                     .absent = "those that may win"});
    if (!experiment.groups.decodes)
        options.add({.name = "masks",
                     .value = "NAME",
                     .help = "who sees whom (see --list); join terms by +. documents:input takes the input's documents",
                     .target = &config.masks});
    if (!calibrates(experiment)) {
        if (!experiment.groups.lists)
            options.add({.name = "algorithms",
                         .value = "NAME",
                         .help = "schedules that bring queries and keys together (see --list)",
                         .target = &config.algorithms,
                         .absent = "those that may win"});
        add_ranks(options, config);
        if (experiment.groups.lists)
            options.add({.name = "rank",
                         .value = "R",
                         .help = "list these alone",
                         .target = &config.listed_ranks,
                         .absent = "all of them",
                         .low = 0});
        if (!experiment.groups.plans && !experiment.groups.decodes)
            options.add({.name = "pad",
                         .value = "",
                         .help = "round tokens up to what the layout divides; the mask excludes the rest",
                         .target = &config.pad});
    }
}

void add_measuring(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    if (groups.measures) {
        options.section("How it is measured");
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
        if (calibrates(experiment))
            options.add({.name = "measured",
                         .value = "FILE",
                         .help = "what calibrate --backend cuda has kept of an earlier run: fit it again, time nothing",
                         .target = &config.measured,
                         .absent = "it is timed now"});
        if (groups.breaks)
            options.add(
                {.name = "launcher",
                 .value = "WORDS",
                 .help = "what starts the processes in which faults of the machine are made, followed by -np P; none "
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
    if (groups.measures && !groups.decodes && !groups.breaks && !calibrates(experiment)) {
        options.add({.name = "replicas",
                     .value = "N",
                     .help = "data-parallel copies of the ring",
                     .target = &config.replicas,
                     .low = 1,
                     .high = 1024});
        if (groups.layer)
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
    if (groups.measures && !groups.breaks)
        options.add({.name = "repeats",
                     .value = "N",
                     .help = "measurements of each run",
                     .target = &config.repeats,
                     .low = 1,
                     .high = 1000});
    if (groups.measures && !calibrates(experiment)) {
        options.add({.name = "timeout",
                     .value = "SECONDS",
                     .help = "after which a rank that waits for others gives up",
                     .target = &config.timeout_seconds,
                     .low = 0.001,
                     .high = 1e6});
        if (!groups.breaks)
            options.add(
                {.name = "fault",
                 .value = "KIND:RANK",
                 .help = "a fault of the machine, to see what becomes of it: slow (a quarter of the speed) or flip (a "
                         "bit of a message) on the CPU backend, stop or kill (its process) with --mpi",
                 .target = &config.fault,
                 .absent = "none"});
        if (!groups.decodes)
            options.add({.name = "judge-limit",
                         .value = "N",
                         .help = "tokens up to which every element is judged against fp64; above, a sample of rows and "
                                 "columns",
                         .target = &config.judge_limit,
                         .low = 0});
    }
    if (groups.predicts && groups.measures)
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
                     .absent = "1e-13 in fp64, what the roundings of other arithmetics leave",
                     .low = 0});
}

/// `rings_alone`: nothing is timed but rings, which other backends than cuda have too.
void add_timing(Options& options, Config& config, bool rings_alone) {
    options.section("How it is timed");
    if (rings_alone)
        options.add({.name = "measured",
                     .value = "FILE",
                     .help = "a record of validate or throughput: predict its rings (of --transports), and run nothing",
                     .target = &config.measured,
                     .absent = "rings are run"});
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
    options.add({.name = "timeout",
                 .value = "SECONDS",
                 .help = "after which a rank that waits for others gives up",
                 .target = &config.timeout_seconds,
                 .low = 0.001,
                 .high = 1e6});
}

void add_planning(Options& options, Config& config, const Experiment& experiment) {
    options.section("What it must fit");
    options.add({.name = "machines",
                 .value = "NAME",
                 .help = "machine files, by name (see --list) or path: devices, links, transport",
                 .target = &config.machines});
    if (experiment.groups.advises) {
        add_threads(options, config);
        options.add({.name = "gpus",
                     .value = "N",
                     .help = "to spread over; what rings leave takes other sequences of the batch",
                     .target = &config.gpus,
                     .absent = "the largest of --ranks, or all of the machine",
                     .low = 0,
                     .high = 1 << 20});
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

void add_results(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.section("Where results go");
    options.add({.name = "output",
                 .value = "FILE",
                 .help = std::string(calibrates(experiment) ? "machine file (TOML) that --machines of the others takes"
                                                            : "record (HDF5)") +
                         "; if this name is not given and taken, the next free one of -2, -3 and so on",
                 .target = &config.output,
                 .letter = "o",
                 .decides_results = false});
    if (!calibrates(experiment))
        options.add({.name = "resume",
                     .value = "",
                     .help = "continue a record: do only the runs that it lacks",
                     .target = &config.resume,
                     .decides_results = false});
    options.add({.name = "overwrite",
                 .value = "",
                 .help = calibrates(experiment) ? "replace a file that exists" : "replace a record that exists",
                 .target = &config.overwrite,
                 .decides_results = false});
    if (groups.advises)
        options.add({.name = "json",
                     .value = "FILE",
                     .help = "write the advice as JSON",
                     .target = &config.json,
                     .absent = "no JSON",
                     .decides_results = false});
    if (groups.measures && !groups.decodes && !calibrates(experiment))
        options.add({.name = "save-tensors",
                     .value = "FOLDER",
                     .help = "for an HDF5 file of inputs and outputs of every run (check one with "
                             "experiments/check_tensors.py)",
                     .target = &config.save_tensors,
                     .absent = "none are saved",
                     .decides_results = false});
}

void add_general(Options& options, Config& config, Requests& requests) {
    options.section("General");
    options.add({.name = "force",
                 .value = "",
                 .help = "run also what, by an estimate made before, exceeds this computer's memory or a week",
                 .target = &config.force,
                 .decides_results = false});
    options.add({.name = "config",
                 .value = "FILE",
                 .help = "file of 'name = value' lines, several values between blanks; the command line comes first, "
                         "then --config, then --preset",
                 .target = &requests.config_files,
                 .absent = "none",
                 .decides_results = false});
    options.add({.name = "list",
                 .value = "",
                 .help = "show the known layouts, masks, algorithms, inputs, machines and presets",
                 .target = &requests.list,
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

bool times_attention_alone(const Experiment& experiment) {
    return experiment.groups.throughput || experiment.groups.decodes || calibrates(experiment);
}

Options options_of(Config& config, Requests& requests, const Experiment& experiment) {
    Options options;
    add_problem(options, config, requests, experiment);
    if (!experiment.groups.lists && !experiment.groups.breaks && !calibrates(experiment)) add_sinks(options, config);
    if (can_drop(experiment)) add_dropout(options, config);
    if (!experiment.groups.breaks) add_rotary(options, config, experiment);
    if (experiment.groups.packs) add_packing(options, config);
    add_layout(options, config, experiment);
    add_measuring(options, config, experiment);
    if (experiment.groups.throughput) add_timing(options, config, experiment.groups.predicts);
    if (experiment.groups.predicts) add_predicting(options, config);
    if (experiment.groups.disturbs) add_disturbing(options, config);
    if (experiment.groups.plans) add_planning(options, config, experiment);
    if (!experiment.groups.lists) add_results(options, config, experiment);
    add_general(options, config, requests);
    return options;
}

}  // namespace ringlab::experiments
