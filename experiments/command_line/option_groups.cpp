#include "experiments/command_line/option_groups.hpp"

#include "experiments/execution/backend.hpp"
#include "experiments/inputs/inputs.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {

void add_tokens(Options& options, SweepConfig& sweep) {
    options.add("tokens", &sweep.tokens, "N", "tokens of the whole sequence; of an input file, its first N tokens")
        .without(sweep.tokens_per_rank.empty() ? "as many as the input has; 512 of generated ones"
                                               : "--tokens-per-rank says")
        .at_least(1);
    options.add("tokens-per-rank", &sweep.tokens_per_rank, "N", "tokens of each rank, instead of --tokens")
        .without("--tokens says")
        .at_least(1);
}

void add_queries(Options& options, SweepConfig& sweep) {
    options
        .add("queries", &sweep.queries, "N",
             "only the last N tokens of every sequence have a query row: a suffix after a prefix with known K and V, "
             "or 1 for decoding. 0: all tokens have one")
        .without("all have")
        .at_least(0);
}

void add_heads(Options& options, ProblemConfig& problem) {
    options.add("batch", &problem.batch, "N", "number of sequences in a batch").at_least(1);
    options.add("heads", &problem.heads, "Q:KV", "numbers of query and kv heads, as in 32:8; 32 means 32:32")
        .without("those of the input; 4:2 for generated ones");
    options.add("head-dim", &problem.head_dim, "N", "elements of a query or key (head dim)")
        .without("that of the input; 128 for generated ones")
        .at_least(0);
    options.add("value-dim", &problem.value_dim, "N", "elements of a value")
        .without("the head dim, or that of the input")
        .at_least(0);
}

void add_scores(Options& options, ProblemConfig& problem) {
    options.add("scale", &problem.scale, "X", "factor of the scores q.k")
        .without("that of the input, or 1/sqrt(head dim)");
    options
        .add("soft-cap", &problem.soft_cap, "C",
             "scores s become C*tanh(s/C); none removes the cap of a preset or an input")
        .without("that of the input, or none")
        .at_least(0)
        .or_none();
}

void add_sinks(Options& options, ProblemConfig& problem) {
    options
        .add("sinks", &problem.sinks, "X",
             "learned sink logits: exp(X) is added to the softmax denominator of a query head. One number for all "
             "heads, one for each as in --sinks=1.5,-2, or normal: drawn by --seed")
        .without("there are none");
}

void add_latent(Options& options, ProblemConfig& problem) {
    options
        .add("latent", &problem.latent_spec, "RANK+SHARED",
             "multi-head latent attention, as in 512+64: a token has RANK numbers, from which a matrix for each head "
             "makes its K and V, and SHARED numbers that are the last dims of every K. These numbers travel; with "
             "--schedules expanded:ring K and V do")
        .without("K and V are given");
}

void add_rotary(Options& options, ProblemConfig& problem) {
    std::string scalings;
    for (const auto& scaling : layouts::rotary_scaling_usages())
        scalings += fmt::format("{}{} ({})", scalings.empty() ? "" : ", ", scaling.usage, scaling.help);
    options
        .add("rotary", &problem.rotary_spec, "SPEC",
             "rotary embedding: the base of its frequencies, as in 500000, or none. More is joined by +, as in "
             "10000+dims:64+first:128. dims:N, first:N: how many dims of a head are rotated, and from which one on "
             "(all). pairs:NAME: which of n dims form a pair, half (i and n/2 + i, the default) or interleaved (2i and "
             "2i + 1). positions:NAME: global (the default), or documents: counted from 0 in every document that the "
             "mask packs, without padding. scaling:NAME, for more tokens than a model was trained on: " +
                 scalings)
        .without("nothing is rotated");
}

void add_dropout(Options& options, ProblemConfig& problem) {
    options.add("dropout", &problem.dropout.probability, "P",
                "probability that an element of p is set to 0 after the softmax, rounded to a multiple of 2^-16. Every "
                "layout, schedule, number of ranks and backend drops the same elements, drawn by --seed");
}

void add_attention(Options& options, ProblemConfig& problem) {
    add_heads(options, problem);
    add_scores(options, problem);
    add_sinks(options, problem);
    add_latent(options, problem);
    add_rotary(options, problem);
    add_dropout(options, problem);
}

void add_inputs(Options& options, Config& config) {
    std::string generators;
    for (const auto& kind : input_kinds()) generators += (generators.empty() ? "" : ", ") + kind.name;
    options.add("input", &config.sweep.inputs, "NAME",
                fmt::format("real (comes with Ringlab), a generator ({}), or an HDF5 file with q, k, v and perhaps do, "
                            "each (batch, token, head, dim)",
                            generators));
    add_seed(options, config.problem);
}

void add_seed(Options& options, ProblemConfig& problem) {
    options.add("seed", &problem.seed, "N", "seed of the random numbers").at_least(0);
}

void add_layouts(Options& options, SweepConfig& sweep) {
    options.add("layouts", &sweep.layouts, "NAME", "which rank owns which tokens (see --list)")
        .without("those that may win");
}

void add_masks(Options& options, SweepConfig& sweep) {
    options.add("masks", &sweep.masks, "NAME",
                "which keys each query row sees (see --list); + joins terms. documents:input takes the documents of "
                "the input");
}

void add_schedules(Options& options, SweepConfig& sweep) {
    options.add("schedules", &sweep.schedules, "NAME", "which blocks travel between ranks, and when (see --list)")
        .without("those that may win");
}

void add_ranks(Options& options, SweepConfig& sweep) {
    options.add("ranks", &sweep.ranks, "P", "ring sizes P (number of ranks)")
        .without("powers of two, and all GPUs")
        .between(1, 1 << 20);
}

void add_sweep(Options& options, SweepConfig& sweep) {
    options.section("How it is laid out");
    add_layouts(options, sweep);
    add_masks(options, sweep);
    add_schedules(options, sweep);
    add_ranks(options, sweep);
}

void add_padding(Options& options, SweepConfig& sweep) {
    options.add_flag("pad", sweep.pad,
                     "round the number of tokens up to one that the layout divides; the mask hides the padding");
}

void add_backends(Options& options, ExecutionConfig& execution) {
    std::string names;
    for (const auto& [name, backend] : backends().entries())
        names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", name, backend.help);
    options.add("backend", &execution.backend, "NAME", names);
    for (const auto& [name, backend] : backends().entries()) {
        execution.backends[name] = backend.factory();
        options.only_for_backend(name);
        execution.backends[name]->add_options(options);
    }
    options.only_for_backend("");
}

void add_arithmetic(Options& options, ProblemConfig& problem, std::vector<std::string> choices) {
    options
        .add("arithmetic", &problem.arithmetic, "NAME",
             choices.size() > 2 ? "fp64, fp32, bf16 or fp16; the last two are emulated by the CPU backend"
                                : "bf16 or fp16")
        .one_of(std::move(choices));
}

void add_processes(Options& options, ExecutionConfig& execution) {
    options.add_flag("mpi", execution.mpi,
                     "run each rank as a process of its own; start the program with mpirun or srun");
    options
        .add("timeout", &execution.timeout_seconds, "SECONDS",
             "time after which a rank that waits for another one gives up, with an error")
        .between(0.001, 1e6);
}

void add_replicas(Options& options, ExecutionConfig& execution) {
    options.add("replicas", &execution.replicas, "N", "number of data-parallel copies of the ring").between(1, 1024);
    options.add("placement", &execution.placement, "NAME", "which global ranks form a replica: consecutive or strided")
        .one_of({"consecutive", "strided"});
}

void add_repeats(Options& options, ExecutionConfig& execution, std::string help) {
    options.add("repeats", &execution.repeats, "N", std::move(help)).between(1, 1e6);
}

void add_policies(Options& options, SweepConfig& sweep) {
    options
        .add("policies", &sweep.policies, "NAME",
             "how partial results are merged: carry (the fp32 state goes from block to block), gradients (carry, but "
             "gradients travel in bf16), partials (partial results and gradients in bf16), running (as partials, and "
             "the running output in bf16 too)")
        .without("carry");
}

void add_judge_limit(Options& options, JudgingConfig& judging) {
    options
        .add("judge-limit", &judging.limit, "N",
             "up to this number of tokens every element is judged against fp64; above it, a sample of rows and "
             "columns. none: nothing is judged")
        .at_least(1)
        .or_none();
}

void add_tolerance(Options& options, JudgingConfig& judging) {
    options
        .add("tolerance", &judging.tolerance, "X",
             "largest relative error that passes; if one is larger, the exit status is 2")
        .without(
            "for each run what the roundings of its arithmetic and policy can leave in its inputs, which the "
            "record keeps")
        .at_least(0);
}

void add_fault(Options& options, ExecutionConfig& execution) {
    options
        .add("fault", &execution.fault, "KIND:RANK",
             "make a fault on purpose at this rank: slow (compute at a quarter of the speed) on the CPU backend, stop "
             "or kill (its process) with --mpi")
        .without("none");
}

void add_save_tensors(Options& options, OutputConfig& output) {
    options
        .add("save-tensors", &output.save_tensors, "FOLDER",
             "write an HDF5 file with inputs and outputs of every run to this folder (experiments/check_tensors.py "
             "checks one)")
        .without("none are saved")
        .changes_no_result();
}

void add_timed_rings(Options& options, Config& config) {
    auto& timing = config.timing;
    options
        .add("shapes", &timing.shapes, "SHAPE",
             "shapes, instead of --heads, dims and --arithmetic: HEADS/DIM or HEADS/DIM/ARITHMETIC, as in 32:8/128, "
             "32:8/192-128 or 16/64/fp16")
        .without("the one of --heads, dims and --arithmetic");
    add_arithmetic(options, config.problem, {"bf16", "fp16"});
    options
        .add("kernels", &timing.kernels, "NAME",
             "kernel families that are timed: auto (the fastest that runs), portable, hopper")
        .one_of({"auto", "portable", "hopper"});
    options
        .add(
            "transports", &timing.transports, "NAME",
            "transports of rings: copy (copy engines, one host), nccl, mixed (copy engines inside a host, NCCL between "
            "hosts); with --backend cpu: threads")
        .one_of({"copy", "nccl", "mixed", "threads"});
    add_processes(options, config.execution);
    options
        .add("warm-up", &timing.warm_up_seconds, "SECONDS",
             "device time to run each case before it is measured; longer if times are not steady yet")
        .between(0, 60);
    options.add("seconds", &timing.repeat_seconds, "SECONDS", "device time to measure each pass or kernel for")
        .between(1e-6, 60);
    add_repeats(options, config.execution, "least number of passes of a ring to measure");
}

void add_machines(Options& options, PredictionConfig& prediction) {
    options.add("machines", &prediction.machines, "NAME",
                "machine files, by name (see --list) or path; calibrate writes one for this computer");
}

void add_clock(Options& options, PredictionConfig& prediction) {
    options
        .add("clock", &prediction.clock, "NAME",
             "GPU clock during attends: sustained (what power allows when passes are repeated without end, as in "
             "training), or calibrated (that of short runs, for which predictions are not scored)")
        .one_of({"sustained", "calibrated"});
}

void add_span_ranks(Options& options, PredictionConfig& prediction) {
    options
        .add("span-ranks", &prediction.span_ranks, "N",
             "largest number of ranks for which the record keeps when each operation is predicted to run")
        .at_least(0);
}

void add_trace(Options& options, TraceConfig& trace) {
    options
        .add("trace", &trace.file, "FILE",
             "write a Chrome trace of the first run and up to 64 of its ranks (open it in Perfetto)")
        .without("no trace")
        .changes_no_result();
}

void add_memory(Options& options, MemoryConfig& memory) {
    options.add("device-memory", &memory.device_gigabytes, "GB", "memory of one device, in 10^9 bytes")
        .without("the machine file says")
        .between(0, 1e6);
    options.add("resident", &memory.resident_gigabytes, "GB", "part of it that is always in use: weights, optimizer")
        .between(0, 1e6);
    options
        .add("layers", &memory.model_layers, "N",
             "number of attention layers whose activations are kept until the backward pass")
        .between(1, 100000);
    options
        .add("keep", &memory.keep, "POLICY",
             "what is kept of each layer: everything (input, Q, K, V, O, lse), output (input, O, lse), kv (input, K, "
             "V), checkpoint (input), or cache (K, V, without a backward pass). The rest is computed again")
        .one_of({"everything", "output", "kv", "checkpoint", "cache"});
    options
        .add("beside", &memory.beside_bytes, "BYTES",
             "bytes kept for each token and layer by other parts than attention, such as an MLP")
        .between(0, 1e9);
}

}  // namespace ringlab::experiments
