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
    "Times parts of attention on this machine, none of them a ring, fits the cost model of the simulator, checks it "
    "on\n"
    "what was held out, and writes a machine file (TOML, to be read and edited; every figure says where it comes "
    "from)\n"
    "for --machines of the other experiments. --backend cpu times attends of one rank and of ranks that take turns, "
    "by\n"
    "their processor time, sums, and messages between two ranks that compute nothing. --backend cuda times attends of\n"
    "one GPU, what surrounds them, passes of one rank and of ranks that take turns on it, clocks with and without\n"
    "rests, the host, and messages between GPUs, alone and beside attends; it keeps them beside the machine file, for\n"
    "--measured to fit again, and makes one machine file for each transport.",
    "calibrate --arithmetic bf16 && compare_layouts --machines ./this_cpu.toml",
    {.measures = true},
    FileKind::machine};

Config defaults() {
    Config config;
    config.inputs = {"normal"};
    config.tokens = {128, 192, 256, 384, 512, 1024};
    config.masks = {"causal", "full", "window:100,0"};
    config.layouts = {"contiguous"};
    config.algorithms = {"ring"};
    config.ranks = {1};
    config.arithmetic = "bf16";
    config.judge = false;
    config.output = "this_cpu.toml";
    return config;
}

/// What the user left open, in sizes that suit GPUs.
Config with_gpu_defaults(Config config) {
    const auto open = [&](const char* option) { return !config.given.contains(option); };
    if (open("tokens") && open("tokens-per-rank")) config.tokens = {256, 512, 1024, 2048, 4096, 8192};
    if (open("heads")) config.heads = "32:8";
    if (open("head-dim")) config.head_dim = 128;
    if (open("masks")) config.masks = {"causal", "full"};
    return config;
}

int calibrate(Config& config, int argc, char** argv) {
    auto provenance = collect_provenance(argc, argv);
    const auto if_there = config.overwrite ? IfThere::replace : IfThere::refuse;
    const auto guard = [&](const char* ending, FileKind kind) {
        config.files.writes("--output", beside(config.output, ending), kind, if_there);
    };
    if (!config.measured.empty()) {
        guard(nccl_ending, FileKind::machine);
        return calibrate_gpu(config, nullptr, provenance);
    }
    const auto probe = backend_kind(config)->probe(config);
    if (!probe) {
        require(config.gpus_per_host == 0,
                "--gpus-per-host {}: processors are described, as many as there are ranks; "
                "it goes with --backend cuda, or with --measured",
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
    say_notes(*config);
    return run_in_session(*config, argc, argv, [&] { return calibrate(*config, argc, argv); });
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
