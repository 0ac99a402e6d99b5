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

void add_stack(Options& options, Config& config) {
    options.add({.name = "stack",
                 .value = "NAME",
                 .help =
                     "a model's layers, by name (see --list) or a file that says '46 layers: LOCAL 5x GLOBAL', with "
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

void add_growth(Options& options, Config& config) {
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

void add_shape(Options& options, Config& config, const Experiment& experiment) {
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
                 .help = "scores s become C*tanh(s/C); none takes away that of a preset or an input",
                 .target = &config.soft_cap,
                 .absent = "that of the input, or none",
                 .low = 0,
                 .none = "none"});
}

void add_inputs(Options& options, Config& config, Requests& requests, const Experiment& experiment) {
    const auto& groups = experiment.groups;
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

}  // namespace

void add_problem(Options& options, Config& config, Requests& requests, const Experiment& experiment) {
    const auto& groups = experiment.groups;
    options.section("What is computed");
    if (groups.stacks) add_stack(options, config);
    if (!groups.plans || groups.advises) add_tokens(options, config, experiment);
    if (groups.decodes) add_growth(options, config);
    const bool has_sequences_of_its_own =
        groups.plans || groups.throughput || groups.layer || groups.lists || groups.decodes || groups.stacks;
    if (!has_sequences_of_its_own && !calibrates(experiment))
        options.add({.name = "queries",
                     .value = "N",
                     .help = "of every sequence only the last N tokens have a query row, as a suffix after a prefix "
                             "whose K, V are at hand, or 1 in decoding; 0: all have",
                     .target = &config.queries,
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
    options.add({.name = "rotary",
                 .value = "BASE",
                 .help = "base of the frequencies, as 500000, or none; dq and dk are those of q and k before" +
                         std::string(times_attention_alone(experiment)
                                         ? ". Here attention alone is timed, and what rotates is left out"
                                         : ""),
                 .target = &config.rotary.base,
                 .absent = "nothing is rotated",
                 .low = 0,
                 .none = "none"});
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
                         "of the shortest stretches of tokens that see, and are seen by, none outside; padding is not "
                         "counted",
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
                 .target = &config.dropout.probability});
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

}  // namespace ringlab::experiments
