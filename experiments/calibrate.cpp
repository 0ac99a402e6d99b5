// What does attention cost on this computer? Times parts of it, fits the simulator's cost model to them, and writes a
// machine file, so that what the other experiments predict and what they measure are about the same machine. No ring
// enters the fit.

#include "experiments/calibration/calibrate_cpu.hpp"
#include "experiments/calibration/calibrate_gpu.hpp"
#include "experiments/command_line/command_line.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/main/run_main.hpp"

namespace ringlab::experiments {
namespace {

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
    "calibrate --arithmetic bf16 && compare_layouts --machines ./this_cpu.toml",
    {.measures = true},
    FileKind::machine};

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

int calibrate(Config& config, int argc, char** argv) {
    if (config.sweep.tokens.empty()) config.sweep.tokens = config.sweep.tokens_per_rank;  // of the one rank
    auto provenance = collect_provenance(argc, argv);
    const auto if_there = config.output.overwrite ? IfThere::replace : IfThere::refuse;
    const auto guard = [&](const char* ending, FileKind kind) {
        config.output.files.writes("--output", beside(config.output.path, ending), kind, if_there);
    };
    if (!config.timing.measured.empty()) {
        guard(nccl_ending, FileKind::machine);
        return calibrate_gpu(config, nullptr, provenance);
    }
    const auto probe = backend_kind(config.execution)->probe();
    if (!probe) {
        require(config.gpus_per_host == 0,
                "--gpus-per-host {}: a machine of CPU ranks has one processor for each rank; use the option "
                "with --backend cuda, or with --measured",
                config.gpus_per_host);
        return calibrate_cpu(config);
    }
    guard(nccl_ending, FileKind::machine);
    guard(samples_ending, FileKind::record);
    probe->add_provenance(provenance);
    return calibrate_gpu(with_gpu_defaults(config), probe.get(), provenance);
}

int body(int argc, char** argv) {
    auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    say_notes(config->notes);
    return run_in_session(config->execution, config->output.text, argc, argv,
                          [&] { return calibrate(*config, argc, argv); });
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
