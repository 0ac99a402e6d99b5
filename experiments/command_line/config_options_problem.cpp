#include "experiments/command_line/config_options.hpp"

#include "experiments/inputs/inputs.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

std::string generators() {
    std::string names;
    for (const auto& kind : input_kinds()) names += (names.empty() ? "" : ", ") + kind.name;
    return names;
}

void add_tokens(Options& options, Config& config, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.add({.name = "tokens",
                 .value = "N",
                 .help = groups.measures ? "tokens of the whole sequence; of an input file, its first N tokens"
                                         : "tokens of the whole sequence",
                 .target = &config.sweep.tokens,
                 .absent = !config.sweep.tokens_per_rank.empty() ? "--tokens-per-rank says"
                                                                 : "as many as the input has; 512 of generated ones",
                 .low = 1});
    options.add({.name = "tokens-per-rank",
                 .value = "N",
                 .help = "tokens of each rank, instead of --tokens",
                 .target = &config.sweep.tokens_per_rank,
                 .absent = "--tokens says",
                 .low = 1});
}

void add_growth(Options& options, Config& config) {
    options.add({.name = "sequences",
                 .value = "N",
                 .help = "numbers of sequences that grow together",
                 .target = &config.sweep.sequences,
                 .low = 1,
                 .high = 4096});
    options.add({.name = "lengths",
                 .value = "NAME",
                 .help = "lengths of the sequences before they grow: falling (sequence s of N, counted from 0, has "
                         "(N-s)/N of --tokens) or equal (each has --tokens)",
                 .target = &config.decoding.lengths});
    options.add({.name = "rows",
                 .value = "N",
                 .help = "tokens that a step appends to each sequence, and query rows of the sequence: more than 1 as "
                         "in speculative decoding. Each row sees the tokens up to its own",
                 .target = &config.sweep.queries,
                 .low = 1,
                 .high = 256});
    options.add({.name = "steps",
                 .value = "N",
                 .help = "steps, one after another; each appends --rows tokens to each sequence",
                 .target = &config.decoding.steps,
                 .low = 1,
                 .high = 100000});
}

void add_shape(Options& options, Config& config, const Experiment& experiment) {
    options.add({.name = "batch",
                 .value = "N",
                 .help = "number of sequences in a batch",
                 .target = &config.problem.batch,
                 .low = 1});
    options.add({.name = "heads",
                 .value = "Q:KV",
                 .help = "numbers of query and kv heads, as in 32:8; 32 means 32:32",
                 .target = &config.problem.heads,
                 .absent = "those of the input; 4:2 for generated ones"});
    options.add({.name = "head-dim",
                 .value = "N",
                 .help = "elements of a query or key (head dim)",
                 .target = &config.problem.head_dim,
                 .absent = "that of the input; 128 for generated ones",
                 .low = 0});
    options.add({.name = "value-dim",
                 .value = "N",
                 .help = "elements of a value",
                 .target = &config.problem.value_dim,
                 .absent = "the head dim, or that of the input",
                 .low = 0});
    options.add(
        {.name = "latent",
         .value = "RANK+SHARED",
         .help = "multi-head latent attention, as in 512+64: a token has RANK numbers, from which a matrix for each "
                 "head makes its K and V, and SHARED numbers that are the last dims of every K. These numbers travel "
                 "and are expanded where they arrive; their gradients are compressed there. With --schedules "
                 "expanded:ring their owner expands them, and K and V travel" +
                 std::string(times_attention_alone(experiment)
                                 ? ". This program times attention alone, with K and V as given"
                                 : ""),
         .target = &config.problem.latent_spec,
         .absent = "K and V are given"});
    options.add({.name = "scale",
                 .value = "X",
                 .help = "factor of the scores q.k",
                 .target = &config.problem.scale,
                 .absent = "that of the input, or 1/sqrt(head dim)"});
    options.add({.name = "soft-cap",
                 .value = "C",
                 .help = "scores s become C*tanh(s/C); none removes the cap of a preset or an input",
                 .target = &config.problem.soft_cap,
                 .absent = "that of the input, or none",
                 .low = 0,
                 .none = "none"});
}

void add_inputs(Options& options, Config& config, Requests& requests, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.add({.name = "preset",
                 .value = "NAME",
                 .help = "sizes of a real model, by name (see --list) or as a file like those of --config" +
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
             .target = &config.sweep.inputs});
    if (groups.measures)
        options.add(
            {.name = "seed", .value = "N", .help = "seed of the generators", .target = &config.problem.seed, .low = 0});
}

}  // namespace

void add_problem(Options& options, Config& config, Requests& requests, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.section("What is computed");
    if (!groups.plans || groups.advises) add_tokens(options, config, experiment);
    if (groups.decodes) add_growth(options, config);
    const bool has_sequences_of_its_own =
        groups.plans || groups.throughput || groups.decodes;
    if (!has_sequences_of_its_own && !calibrates(experiment))
        options.add(
            {.name = "queries",
             .value = "N",
             .help =
                 "only the last N tokens of every sequence have a query row: a suffix after a prefix with known K and "
                 "V, or 1 for decoding. 0: all tokens have one",
             .target = &config.sweep.queries,
             .absent = "all have",
             .low = 0});
    add_shape(options, config, experiment);
    add_inputs(options, config, requests, experiment);
}

void add_rotary(Options& options, Config& config, const Experiment& experiment) {
    std::string scalings;
    for (const auto& scaling : layouts::rotary_scaling_usages())
        scalings += fmt::format("{}{} ({})", scalings.empty() ? "" : ", ", scaling.usage, scaling.help);
    options.section("How q and k are rotated by their position before they are attended to (rotary embedding)");
    options.add(
        {.name = "rotary",
         .value = "BASE",
         .help = "base of the frequencies, as in 500000, or none; dq and dk are gradients of the unrotated q and k" +
                 std::string(times_attention_alone(experiment)
                                 ? ". This program times attention alone, without the rotation"
                                 : ""),
         .target = &config.problem.rotary.base,
         .absent = "nothing is rotated",
         .low = 0,
         .none = "none"});
    options.add({.name = "rotary-dims",
                 .value = "N",
                 .help = "number of dims of a head that are rotated",
                 .target = &config.problem.rotary.dims,
                 .absent = "all from the first one on",
                 .low = 0});
    options.add({.name = "rotary-first",
                 .value = "N",
                 .help = "first dim that is rotated; dims before it and behind the last one are not",
                 .target = &config.problem.rotary.first,
                 .low = 0});
    options.add({.name = "rotary-pairs",
                 .value = "NAME",
                 .help = "which of n dims form a pair: half (i and n/2 + i) or interleaved (2i and 2i + 1)",
                 .target = &config.problem.rotary_pairs,
                 .choices = {"half", "interleaved"}});
    options.add({.name = "rotary-scaling",
                 .value = "SPEC",
                 .help = "scaling for more tokens than a model was trained on: " + scalings,
                 .target = &config.problem.rotary_scaling});
    options.add({.name = "rotary-positions",
                 .value = "NAME",
                 .help =
                     "global (position in the sequence), or documents: counted from 0 in every document that the mask "
                     "packs, without padding. A document is a shortest range of tokens that see, and are seen by, no "
                     "token outside",
                 .target = &config.problem.rotary_positions,
                 .choices = {"global", "documents"}});
}

void add_sinks(Options& options, Config& config) {
    options.add(
        {.name = "sinks",
         .value = "X",
         .help = "learned sink logits: exp(X) is added to the softmax denominator of a query head. One number for all "
                 "heads, one for each as in --sinks=1.5,-2, or normal: drawn by --seed",
         .target = &config.problem.sinks,
         .absent = "there are none"});
}

void add_dropout(Options& options, Config& config) {
    options.add({.name = "dropout",
                 .value = "P",
                 .help =
                     "probability that an element of p is set to 0 after the softmax; the others are divided by 1 - P. "
                     "P is rounded to a multiple of 2^-16. Every layout, schedule, number of ranks and backend drops "
                     "the same elements",
                 .target = &config.problem.dropout.probability});
    options.add({.name = "dropout-seed",
                 .value = "N",
                 .help = "seed that decides, with batch element, head, query and key, what is dropped",
                 .target = &config.problem.dropout.seed,
                 .low = 0});
}

}  // namespace ringlab::experiments
