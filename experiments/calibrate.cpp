// What does attention cost on this computer? Times parts of it, fits the simulator's cost model to them, and writes a
// machine file, so that what the other experiments predict and what they measure are about the same machine. No ring
// enters the fit.

#include "experiments/calibration/calibrate.hpp"
#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/execution/backend.hpp"

namespace ringlab::experiments {
namespace {

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_heads(options, config.problem);
    add_scores(options, config.problem);
    add_seed(options, config.problem);
    add_masks(options, config.sweep);
    options.section("How it is measured");
    add_backends(options, config.execution);
    add_arithmetic(options, config.problem, {"fp64", "fp32", "bf16", "fp16"});
    options
        .add("measured", &config.timing.measured, "FILE",
             "samples that calibrate --backend cuda wrote earlier: fit them again and time nothing")
        .without("it is timed now");
    options
        .add("gpus-per-host", &config.gpus_per_host, "N",
             "number of GPUs of a host in the described machine, if it is larger than the number that was timed; the "
             "others are assumed to be equal to those")
        .without("those that were timed")
        .between(1, 1024);
    add_repeats(options, config.execution, "number of measurements of each sample");
}

const Experiment experiment{
    "calibrate",
    "Measures what attention and links cost on this machine and writes a machine file, which predict and "
    "the other\n"
    "programs read (--machines). It times parts of a pass, and no ring. It fits the cost model to them "
    "and checks the\n"
    "fit on parts that were held out. The machine file is TOML that can be read and edited; every number "
    "has its source.\n"
    "--backend cpu times attends (processor time) of one rank and of ranks that take turns, sums, and "
    "messages between\n"
    "two ranks that compute nothing. --backend cuda times attends of one GPU, what surrounds them, "
    "passes of one rank and\n"
    "of ranks that take turns on a GPU, clocks with and without rests, the host, and messages between "
    "GPUs, alone and\n"
    "beside attends. It writes one machine file for each transport, and the samples beside it, which "
    "--measured fits\n"
    "again.",
    "calibrate --arithmetic bf16 && compare_layouts --machines ./this_cpu.toml", add_options, FileKind::machine};

Config defaults() {
    Config config;
    config.sweep.inputs = {"normal"};
    config.sweep.tokens = {128, 192, 256, 384, 512, 1024};
    config.sweep.masks = {"causal", "full", "window:100,0"};
    config.sweep.layouts = {"contiguous"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {1};
    config.problem.arithmetic = "bf16";
    config.judging.judge = false;
    config.output.path = "this_cpu.toml";
    return config;
}

/// What the user left open, in sizes that suit GPUs.
Config with_gpu_defaults(Config config) {
    const auto open = [&](const char* option) { return !config.given.contains(option); };
    if (open("tokens") && open("tokens-per-rank")) config.sweep.tokens = {256, 512, 1024, 2048, 4096, 8192};
    if (open("heads")) config.problem.heads = "32:8";
    if (open("head-dim")) config.problem.head_dim = 128;
    if (open("masks")) config.sweep.masks = {"causal", "full"};
    return config;
}

void calibrate(Config& config, int argc, char** argv) {
    say_notes(config.notes);
    if (config.sweep.tokens.empty()) config.sweep.tokens = config.sweep.tokens_per_rank;  // of the one rank
    const bool from_samples = !config.timing.measured.empty();
    const bool on_processors = !from_samples && backend_kind(config.execution)->on_processors();
    require(!on_processors || config.gpus_per_host == 0,
            "--gpus-per-host {}: a machine of CPU ranks has one processor for each rank; use the option with --backend "
            "cuda, or with --measured",
            config.gpus_per_host);
    if (on_processors) return calibrate_cpu(config);
    auto provenance = collect_provenance(argc, argv);
    const auto guard = [&](const char* ending, FileKind kind) {
        config.output.files.writes("--output", beside(config.output.path, ending), kind,
                                   config.output.overwrite ? IfThere::replace : IfThere::refuse);
    };
    guard(nccl_ending, FileKind::machine);
    if (from_samples) return calibrate_gpu(config, nullptr, provenance);
    guard(samples_ending, FileKind::record);
    const auto gpus = make_backend(config.execution, {.arithmetic = config.problem.arithmetic});
    gpus->add_provenance(provenance);
    calibrate_gpu(with_gpu_defaults(config), gpus.get(), provenance);
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    const auto body = [](Config& config, int count, char** words) {
        calibrate(config, count, words);
        return 0;
    };
    return run_program_in_session(experiment, defaults(), body, argc, argv);
}
